"""Log-probabilities and echoed prompts over every front end, on real workers."""

import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import openai
import pytest
from http_service import CHAT, COMPLETIONS, text_of
from table_service import TableService, table_service
from worker_servers import LAW

from paceline.channel import open_channel
from paceline.engine.table_model import BOS_ID, EOS_ID, VOCAB_SIZE
from paceline.v1 import coordinator_pb2 as pb
from paceline.v1.coordinator_pb2_grpc import CoordinatorServiceStub

PROMPT = "the rain in"
PROMPT_IDS = [BOS_ID, *PROMPT.encode()]
SAMPLED: dict[str, Any] = {"max_tokens": 30, "temperature": 0.8, "seed": 3, "ignore_eos": True}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {
        "top_k": 30,
        "logit_bias": {"101": -100, "116": 2},
        "presence_penalty": 1.0,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.2,
    },
]
METHODS = [{"method": "off"}, {"method": "self", "num_speculative_tokens": 3}, {"method": "auto"}]
NUM_TOP = 3


@pytest.fixture
async def service() -> AsyncIterator[TableService]:
    async with table_service() as service:
        yield service


def law(token_ids: Sequence[int], position: int) -> list[float]:
    """The model's own log-probabilities of all tokens in a place."""
    return [math.log(p) if p > 0 else -math.inf for p in LAW.probabilities(token_ids[:position])]


def by_the_law(token_ids: Sequence[int], start: int) -> list[tuple[float, list[int]]]:
    """Of the tokens from `start` on: their own, and the most likely ones in their place."""
    found = []
    for position in range(start, len(token_ids)):
        logprobs = law(token_ids, position)
        ranked = sorted(range(VOCAB_SIZE), key=lambda id: (-logprobs[id], id))
        found.append((pytest.approx(logprobs[token_ids[position]], abs=1e-5), ranked[:NUM_TOP]))
    return found


def name(token_id: int) -> str:
    return chr(token_id) if token_id < 128 else f"bytes:\\x{token_id:02x}"


def chat_content(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    parts = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    assert all(part["refusal"] is None for part in parts)
    return [entry for part in parts for entry in part["content"]]


def completion_arrays(choices: list[dict[str, Any]]) -> dict[str, list[Any]]:
    arrays: dict[str, list[Any]] = {
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
        "text_offset": [],
    }
    for choice in choices:
        if choice["logprobs"]:
            assert choice["logprobs"].keys() == arrays.keys()
            for key, values in choice["logprobs"].items():
                arrays[key] += values
    return arrays


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("speculation", METHODS, ids=lambda m: m["method"])
async def test_every_front_end_gives_the_models_own_for_every_token(
    service: TableService, settings: dict[str, Any], speculation: dict[str, Any]
) -> None:
    body = {**SAMPLED, **settings, "speculation": speculation, "return_token_ids": True}
    asked = {"prompt": PROMPT, "logprobs": NUM_TOP}
    whole = (await service.post(COMPLETIONS, **body, **asked))["choices"][0]
    said = whole["token_ids"]
    expected = by_the_law([*PROMPT_IDS, *said], len(PROMPT_IDS))
    arrays = completion_arrays([whole])
    assert arrays["tokens"] == [name(token_id) for token_id in said]
    assert arrays["token_logprobs"] == [logprob for logprob, _ in expected]
    for token_id, top, (_, ranked) in zip(said, arrays["top_logprobs"], expected, strict=True):
        assert list(top) == list(dict.fromkeys(map(name, [*ranked, token_id])))
    assert arrays["text_offset"] == [
        len(bytes(said[:index]).decode(errors="ignore")) for index in range(len(said))
    ]

    events = await service.stream(COMPLETIONS, **body, **asked)
    choices = [event.data["choices"][0] for event in events]
    assert completion_arrays(choices) == arrays
    for choice in choices:
        assert len(completion_arrays([choice])["tokens"]) == len(choice["token_ids"])

    fields = {**body, "logit_bias": {int(k): v for k, v in body.pop("logit_bias", {}).items()}}
    del fields["return_token_ids"]
    fields["speculation"] = pb.Speculation(**speculation)
    parts = await service.generate(**fields, prompt=PROMPT, num_logprobs=NUM_TOP)
    assert all(len(part.logprobs) == len(part.token_ids) for part in parts)
    found = [logprobs for part in parts for logprobs in part.logprobs]
    assert [(one.logprob, list(one.top_token_ids)) for one in found] == expected
    assert [one.logprob for one in found] == arrays["token_logprobs"]


@pytest.mark.parametrize("num_top", [0, 5])
async def test_a_chat_spells_every_token_and_its_rivals(
    service: TableService, num_top: int
) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    body = {**SAMPLED, "messages": messages, "logprobs": True, "top_logprobs": num_top}
    body |= {"return_token_ids": True, "speculation": METHODS[1]}
    answer = await service.post(CHAT, **body)
    choice = answer["choices"][0]
    content = chat_content([choice])
    expected = by_the_law(
        [*answer["prompt_token_ids"], *choice["token_ids"]], len(answer["prompt_token_ids"])
    )
    assert [entry["logprob"] for entry in content] == [logprob for logprob, _ in expected]
    assert [entry["bytes"] for entry in content] == [[id] for id in choice["token_ids"]]
    joined = bytes(byte for entry in content for byte in entry["bytes"])
    assert joined.decode(errors="replace") == text_of(choice)
    for entry, token_id in zip(content, choice["token_ids"], strict=True):
        assert entry["token"] == (chr(token_id) if token_id < 128 else f"\\x{token_id:02x}")
        assert len(entry["top_logprobs"]) == num_top
        logprobs = [top["logprob"] for top in entry["top_logprobs"]]
        assert logprobs == sorted(logprobs, reverse=True)
        assert all(top.keys() == {"token", "logprob", "bytes"} for top in entry["top_logprobs"])
    events = await service.stream(CHAT, **body)
    assert chat_content([event.data["choices"][0] for event in events]) == content


async def test_without_being_asked_for_there_are_none(service: TableService) -> None:
    for path, body in ((COMPLETIONS, {"prompt": "x"}), (CHAT, {"messages": [USER]})):
        answer = await service.post(path, max_tokens=3, **body)
        assert answer["choices"][0]["logprobs"] is None
        for event in await service.stream(path, max_tokens=3, **body):
            assert event.data["choices"][0]["logprobs"] is None


USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize("speculation", METHODS, ids=lambda m: m["method"])
async def test_a_stop_cuts_tokens_and_their_log_probabilities_in_the_same_place(
    service: TableService, speculation: dict[str, Any]
) -> None:
    forced = {"temperature": 0, "logit_bias": {"49": 100}, "max_tokens": 9, "prompt": "1111"}
    body = {**forced, "stop": ["111"], "logprobs": 2, "speculation": speculation}
    answer = await service.post(COMPLETIONS, **body)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    assert [len(values) for values in choice["logprobs"].values()] == [3, 3, 3, 3]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 3
    events = await service.stream(COMPLETIONS, **body)
    choices = [event.data["choices"][0] for event in events]
    assert completion_arrays(choices) == choice["logprobs"]
    assert "".join(map(text_of, choices)) == ""


async def test_a_stop_token_is_told_by_name_and_has_no_bytes(service: TableService) -> None:
    body = {"max_tokens": 5, "temperature": 0, "logit_bias": {str(EOS_ID): 100}}
    chat = await service.post(CHAT, messages=[USER], logprobs=True, **body)
    (entry,) = chat_content(chat["choices"])
    assert (entry["token"], entry["bytes"]) == ("<|eos|>", None)
    answer = await service.post(COMPLETIONS, prompt="x", logprobs=0, **body)
    (choice,) = answer["choices"]
    assert choice["text"] == ""
    assert choice["logprobs"]["tokens"] == ["<|eos|>"]


@pytest.mark.parametrize("max_tokens", [0, 1, 8])
@pytest.mark.parametrize("prompt", ["naïve", [BOS_ID, *"naïve".encode()], "x"])
async def test_an_echo_has_the_prompt_and_what_the_model_thought_of_it(
    service: TableService, max_tokens: int, prompt: str | list[int]
) -> None:
    text = prompt if isinstance(prompt, str) else "naïve"
    prompt_ids = [BOS_ID, *text.encode()]
    plain = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    body = {**plain, "echo": True, "logprobs": NUM_TOP, "return_token_ids": True}
    for speculation in METHODS:
        answer = await service.post(COMPLETIONS, **body, speculation=speculation)
        (choice,) = answer["choices"]
        said = choice["token_ids"]
        assert len(said) == max_tokens
        assert choice["text"] == text + bytes(said).decode(errors="replace")
        assert choice["finish_reason"] == "length"
        assert answer["usage"]["prompt_tokens"] == len(prompt_ids)
        assert answer["usage"]["completion_tokens"] == max_tokens
        arrays = choice["logprobs"]
        everything = [*prompt_ids, *said]
        expected = by_the_law(everything, 1)
        assert arrays["token_logprobs"] == [None, *(logprob for logprob, _ in expected)]
        assert arrays["top_logprobs"][0] is None
        assert arrays["tokens"] == ["<|bos|>", *map(name, everything[1:])]
        assert arrays["text_offset"] == [
            len(bytes(everything[1:index]).decode(errors="ignore")) if index > 1 else 0
            for index in range(len(everything))
        ]
        events = await service.stream(COMPLETIONS, **body, speculation=speculation)
        choices = [event.data["choices"][0] for event in events]
        assert "".join(map(text_of, choices)) == choice["text"]
        assert completion_arrays(choices) == arrays
        assert choices[-1]["finish_reason"] == "length"
    alone = await service.post(COMPLETIONS, **plain, echo=True)
    assert alone["choices"][0]["text"] == choice["text"]
    assert alone["choices"][0]["logprobs"] is None
    asked = {**plain, "prompt": text, "num_logprobs": NUM_TOP, "prompt_logprobs": True}
    parts = await service.generate(**asked)
    found = [(one.logprob, list(one.top_token_ids)) for one in parts[0].prompt_logprobs]
    assert found == expected[: len(prompt_ids) - 1]
    assert not any(part.prompt_logprobs for part in parts[1:])


async def test_every_choice_has_its_own_and_the_same_prompt(service: TableService) -> None:
    body = {**SAMPLED, "prompt": PROMPT, "n": 3, "logprobs": 1, "echo": True}
    answer = await service.post(COMPLETIONS, return_token_ids=True, **body)
    for choice in answer["choices"]:
        assert choice["text"].startswith(PROMPT)
        expected = by_the_law([*PROMPT_IDS, *choice["token_ids"]], 1)
        assert choice["logprobs"]["token_logprobs"][1:] == [logprob for logprob, _ in expected]
    assert answer["usage"]["prompt_tokens"] == len(PROMPT_IDS)
    events = await service.stream(COMPLETIONS, **body)
    for index, choice in enumerate(answer["choices"]):
        parts = [e.data["choices"][0] for e in events if e.data["choices"][0]["index"] == index]
        assert completion_arrays(parts) == choice["logprobs"]
        assert "".join(map(text_of, parts)) == choice["text"]


@pytest.mark.parametrize("resume_from", [0, 1, 17, 29, 30])
async def test_a_finished_answer_is_resumed_with_the_numbers_it_had(
    service: TableService, resume_from: int
) -> None:
    asked = {**SAMPLED, "prompt": PROMPT, "num_logprobs": NUM_TOP, "request_id": "r"}
    whole = await service.generate(**asked, prompt_logprobs=True)
    again = await service.generate(request_id="r", resume_from=[resume_from])
    before = [logprobs for part in whole for logprobs in part.logprobs]
    after = [logprobs for part in again for logprobs in part.logprobs]
    assert after == before[resume_from:]
    assert all(len(part.logprobs) == len(part.token_ids) for part in again)
    assert again[0].prompt_logprobs == whole[0].prompt_logprobs
    await service.running.until_free()


async def test_an_answer_broken_off_is_resumed_with_the_numbers_it_would_have_had(
    service: TableService,
) -> None:
    asked = {**SAMPLED, "prompt": PROMPT, "num_logprobs": NUM_TOP, "max_tokens": 300}
    whole = await service.generate(**asked)
    num_had = 0
    async with open_channel(service.grpc_address) as channel:
        call = CoordinatorServiceStub(channel).Generate(
            pb.GenerateRequest(**asked, request_id="broken")
        )
        async for part in call:
            num_had += len(part.token_ids)
            if num_had >= 20:
                break
        call.cancel()
    await service.running.until_free()
    parts = await service.generate(request_id="broken", resume_from=[num_had])
    before = [logprobs for part in whole for logprobs in part.logprobs]
    assert [logprobs for part in parts for logprobs in part.logprobs] == before[num_had:]
    parts = await service.generate(request_id="broken", resume_from=[1])
    assert [logprobs for part in parts for logprobs in part.logprobs] == before[1:]


async def test_openais_own_client_reads_them(service: TableService) -> None:
    options: Any = {"base_url": f"{service.url}/v1", "api_key": "none", "max_retries": 0}
    messages: Any = [USER]
    async with openai.AsyncOpenAI(**options) as client:
        chat = await client.chat.completions.create(
            model=f"table:{LAW.seed}",
            messages=messages,
            logprobs=True,
            top_logprobs=2,
            max_tokens=4,
        )
        assert chat.choices[0].logprobs is not None
        assert chat.choices[0].logprobs.content is not None
        assert [len(entry.top_logprobs) for entry in chat.choices[0].logprobs.content] == [2] * 4
        text = await client.completions.create(
            model=f"table:{LAW.seed}", prompt=PROMPT, logprobs=1, echo=True, max_tokens=1
        )
        found = text.choices[0].logprobs
        assert found is not None and found.token_logprobs is not None
        assert len(found.token_logprobs) == len(PROMPT_IDS) + 1
