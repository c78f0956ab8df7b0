"""Chat and completions, whole and streamed, and gRPC say the same, for every kind of request."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from http_service import CHAT, COMPLETIONS, text_of
from plain_text import plain_text
from real_tokenizers import table_tokenizer
from table_service import TableService, table_service
from worker_servers import LAW, draft_server

from coordinator.requests import ChatMessage, FinishReason
from coordinator.servicer import FINISH_REASONS
from paceline.rounds import SequenceSettings
from paceline.v1 import coordinator_pb2 as pb

MESSAGE = "the rain in the rain in"
PROMPT_IDS = table_tokenizer().encode_chat([ChatMessage("user", MESSAGE)])
CHAT_MESSAGE = pb.Chat(messages=[pb.ChatMessage(role="user", content=MESSAGE)])
REASONS = {number: reason.value for reason, number in FINISH_REASONS.items()}


@pytest.fixture
async def service() -> AsyncIterator[TableService]:
    async with table_service(drafts=[draft_server("self"), draft_server("prompt-lookup")]) as found:
        yield found


@dataclass
class Said:
    """What an answer comes to, whichever way it came."""

    texts: list[str]
    token_ids: list[list[int]]
    finish_reasons: list[str]
    usage: tuple[int, int]


def of_whole(answer: dict[str, Any]) -> Said:
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return Said(
        [text_of(choice) for choice in choices],
        [choice["token_ids"] for choice in choices],
        [choice["finish_reason"] for choice in choices],
        (usage["prompt_tokens"], usage["completion_tokens"]),
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
    )


def to_grpc(body: dict[str, Any]) -> dict[str, Any]:
    fields = dict(body)
    if "logit_bias" in fields:
        fields["logit_bias"] = {int(id): bias for id, bias in fields["logit_bias"].items()}
    if "prediction" in fields:
        fields["prediction"] = fields["prediction"]["content"]
    if "speculation" in fields:
        fields["speculation"] = pb.Speculation(**fields["speculation"])
    return fields


async def said_every_way(service: TableService, body: dict[str, Any]) -> list[Said]:
    messages = [{"role": "user", "content": MESSAGE}]
    streamed = {"stream_options": {"include_usage": True}}
    said = []
    for path, prompt in (
        (CHAT, {"messages": messages}),
        (COMPLETIONS, {"prompt": list(PROMPT_IDS)}),
    ):
        asked = {**prompt, **body, "return_token_ids": True}
        said.append(of_whole(await service.post(path, **asked)))
        events = await service.stream(path, **asked, **streamed)
        said.append(of_chunks([event.data for event in events]))
    for prompt in ({"chat": CHAT_MESSAGE}, {"prompt_token_ids": pb.TokenIds(token_ids=PROMPT_IDS)}):
        said.append(of_parts(await service.generate(**prompt, **to_grpc(body))))
    return said


def own_text(max_tokens: int = 40) -> str:
    settings = SequenceSettings(
        max_length=len(PROMPT_IDS) + max_tokens, temperature=0.9, seed=4, choice=0
    )
    return table_tokenizer().decode(plain_text(LAW, PROMPT_IDS, settings))


TEXT = own_text()
SAMPLED = {"temperature": 0.9, "seed": 4, "max_tokens": 40}

CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "max_tokens": 40},
    "sampled": SAMPLED,
    "one token": {**SAMPLED, "max_tokens": 1},
    "end of sequence": {"temperature": 1.0, "seed": 1, "max_tokens": 400},
    "ignoring it": {"temperature": 1.0, "seed": 1, "max_tokens": 400, "ignore_eos": True},
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
    "choices": {**SAMPLED, "n": 3},
    "choices and a stop": {**SAMPLED, "n": 3, "ignore_eos": True, "stop": ["e", "th"]},
    "choices to their ends": {"temperature": 1.0, "seed": 2, "max_tokens": 300, "n": 4},
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
        "prediction": {"type": "content", "content": TEXT},
    },
}


STOPPING = {
    *("end of sequence", "a stop", "stops that overlap", "a stop too early", "a stop token"),
    *("choices and a stop", "choices to their ends", "prediction and a stop"),
}


@pytest.mark.parametrize("name", CASES)
async def test_all_front_ends_say_the_same_with_and_without_drafts(
    name: str, service: TableService
) -> None:
    said = await said_every_way(service, CASES[name])
    for method in ("off", "self", "prompt-lookup"):
        asked = {**CASES[name], "speculation": {"method": method}}
        said.append(of_parts(await service.generate(chat=CHAT_MESSAGE, **to_grpc(asked))))
    first = said[0]
    assert all(other == first for other in said)
    assert first.usage == (len(PROMPT_IDS), sum(map(len, first.token_ids)))
    for token_ids, reason in zip(first.token_ids, first.finish_reasons, strict=True):
        assert (len(token_ids) == CASES[name]["max_tokens"]) or reason == FinishReason.STOP.value
    if name in STOPPING:
        assert "stop" in first.finish_reasons


def test_the_cases_are_what_their_names_say() -> None:
    assert TEXT.isascii()
    assert len(TEXT) == 40
