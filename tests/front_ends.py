"""Five ways to ask the same, and what comes back in one form; requests of every kind."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from http_service import CHAT, COMPLETIONS, text_of
from plain_text import plain_text
from real_tokenizers import table_tokenizer
from table_service import TableService
from worker_servers import LAW

from coordinator.requests import ChatMessage
from coordinator.servicer import FINISH_REASONS
from paceline.rounds import SequenceSettings
from paceline.v1 import coordinator_pb2 as pb

MESSAGE = "the rain in the rain in"
PROMPT_IDS = table_tokenizer().encode_chat([ChatMessage("user", MESSAGE)])
CHAT_MESSAGE = pb.Chat(messages=[pb.ChatMessage(role="user", content=MESSAGE)])
REASONS = {number: reason.value for reason, number in FINISH_REASONS.items()}


@dataclass
class Said:
    """What an answer comes to, whichever way it came."""

    texts: list[str]
    token_ids: list[list[int]]
    finish_reasons: list[str]
    usage: tuple[int, int]
    logprobs: list[list[float]]
    """Of each token, where they are asked for."""


def logprobs_of(choice: dict[str, Any]) -> list[float]:
    match choice.get("logprobs"):
        case {"content": content}:
            return [entry["logprob"] for entry in content]
        case {"token_logprobs": token_logprobs}:
            return list(token_logprobs)
        case _:
            return []


def of_whole(answer: dict[str, Any]) -> Said:
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return Said(
        [text_of(choice) for choice in choices],
        [choice["token_ids"] for choice in choices],
        [choice["finish_reason"] for choice in choices],
        (usage["prompt_tokens"], usage["completion_tokens"]),
        [logprobs_of(choice) for choice in choices],
    )


def of_chunks(chunks: list[dict[str, Any]]) -> Said:
    *others, last = chunks
    parts = [chunk["choices"][0] for chunk in others]
    by_choice = [
        [part for part in parts if part["index"] == index]
        for index in range(1 + max(part["index"] for part in parts))
    ]
    return Said(
        ["".join(map(text_of, own)) for own in by_choice],
        [[id for part in own for id in part["token_ids"]] for own in by_choice],
        [own[-1]["finish_reason"] for own in by_choice],
        (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]),
        [[logprob for part in own for logprob in logprobs_of(part)] for own in by_choice],
    )


def of_parts(parts: list[pb.GenerateResponse]) -> Said:
    by_choice = [
        [part for part in parts if part.choice == index]
        for index in range(1 + max(part.choice for part in parts))
    ]
    usage = parts[-1].usage
    return Said(
        ["".join(part.text for part in own) for own in by_choice],
        [[id for part in own for id in part.token_ids] for own in by_choice],
        [REASONS[own[-1].finish_reason] for own in by_choice],
        (usage.prompt_tokens, usage.completion_tokens),
        [[one.logprob for part in own for one in part.logprobs] for own in by_choice],
    )


def to_grpc(body: dict[str, Any]) -> dict[str, Any]:
    fields = dict(body)
    if "logit_bias" in fields:
        fields["logit_bias"] = {int(id): bias for id, bias in fields["logit_bias"].items()}
    if "prediction" in fields:
        fields["prediction"] = fields["prediction"]["content"]
    if "speculation" in fields:
        fields["speculation"] = pb.Speculation(**fields["speculation"])
    if "response_format" in fields:
        schema = fields["response_format"]["json_schema"]["schema"]
        fields["response_format"] = pb.ResponseFormat(json_schema=json.dumps(schema))
    return fields


async def _whole(service: TableService, path: str, body: dict[str, Any]) -> Said:
    return of_whole(await service.post(path, **body, return_token_ids=True))


async def _streamed(service: TableService, path: str, body: dict[str, Any]) -> Said:
    options = {"return_token_ids": True, "stream_options": {"include_usage": True}}
    events = await service.stream(path, **body, **options)
    return of_chunks([event.data for event in events])


def _as_chat(body: dict[str, Any]) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": MESSAGE}], **body}
    if "num_logprobs" in body:
        body |= {"logprobs": True, "top_logprobs": body.pop("num_logprobs")}
    return body


def _as_completion(body: dict[str, Any]) -> dict[str, Any]:
    body = {"prompt": list(PROMPT_IDS), **body}
    if "num_logprobs" in body:
        body["logprobs"] = body.pop("num_logprobs")
    return body


ENDPOINTS: dict[str, Callable[[TableService, dict[str, Any]], Awaitable[Said]]] = {
    "chat": lambda service, body: _whole(service, CHAT, _as_chat(body)),
    "chat stream": lambda service, body: _streamed(service, CHAT, _as_chat(body)),
    "completion": lambda service, body: _whole(service, COMPLETIONS, _as_completion(body)),
    "completion stream": lambda service, body: _streamed(
        service, COMPLETIONS, _as_completion(body)
    ),
    "grpc": lambda service, body: _generated(service, {"chat": CHAT_MESSAGE}, body),
    "grpc by ids": lambda service, body: _generated(
        service, {"prompt_token_ids": pb.TokenIds(token_ids=PROMPT_IDS)}, body
    ),
}


async def _generated(service: TableService, prompt: dict[str, Any], body: dict[str, Any]) -> Said:
    return of_parts(await service.generate(**prompt, **to_grpc(body)))


def own_text(max_tokens: int = 40) -> str:
    settings = SequenceSettings(
        max_length=len(PROMPT_IDS) + max_tokens, temperature=0.9, seed=4, choice=0
    )
    return table_tokenizer().decode(plain_text(LAW, PROMPT_IDS, settings))


TEXT = own_text()
SAMPLED = {"temperature": 0.9, "seed": 4, "max_tokens": 40}
ENDING = {"temperature": 1.0, "seed": 117, "max_tokens": 60}
"""Its first four choices end by themselves, after 40, 22, 7 and 32 tokens."""

CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "max_tokens": 40},
    "sampled": SAMPLED,
    "one token": {**SAMPLED, "max_tokens": 1},
    "end of sequence": ENDING,
    "ignoring it": {**ENDING, "ignore_eos": True},
    "a stop": {**SAMPLED, "ignore_eos": True, "stop": [TEXT[9:12]]},
    "stops that overlap": {**SAMPLED, "ignore_eos": True, "stop": [TEXT[9:12], TEXT[10:14]]},
    "a stop too early": {
        **SAMPLED,
        "ignore_eos": True,
        "stop": [TEXT[2:4], TEXT[30:33]],
        "min_tokens": 12,
    },
    "a stop that never comes": {**SAMPLED, "ignore_eos": True, "stop": [TEXT[-4:] + "#"]},
    "a stop token": {**SAMPLED, "stop_token_ids": [ord(TEXT[6])]},
    "filtered": {**SAMPLED, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
    "biased": {**SAMPLED, "logit_bias": {str(ord(TEXT[0])): -100, "101": 2.5}},
    "penalties": {**SAMPLED, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    "halves of characters": {**SAMPLED, "logit_bias": {"240": 9, "159": 9}, "ignore_eos": True},
    "log-probabilities": {**SAMPLED, "num_logprobs": 2},
    "log-probabilities and a stop": {
        **SAMPLED,
        "ignore_eos": True,
        "stop": [TEXT[9:12]],
        "num_logprobs": 0,
    },
    "choices": {**SAMPLED, "n": 3},
    "choices and a stop": {**SAMPLED, "n": 3, "ignore_eos": True, "stop": ["e", "th"]},
    "choices to their ends": {**ENDING, "n": 4},
    "prediction": {**SAMPLED, "prediction": {"type": "content", "content": TEXT}},
    "wrong prediction": {**SAMPLED, "prediction": {"type": "content", "content": "nonsense"}},
    "prediction and a stop": {
        **SAMPLED,
        "ignore_eos": True,
        "stop": [TEXT[9:12]],
        "prediction": {"type": "content", "content": TEXT},
    },
    "all together": {
        **SAMPLED,
        "n": 2,
        "min_tokens": 3,
        "stop": [TEXT[20:22]],
        "repetition_penalty": 1.1,
        "num_logprobs": 3,
        "prediction": {"type": "content", "content": TEXT},
    },
}
