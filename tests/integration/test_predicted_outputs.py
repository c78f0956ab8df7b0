"""Predicted Outputs, and what an answer was computed with, over every front end."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from http_service import CHAT, COMPLETIONS, text_of
from real_tokenizers import table_tokenizer
from table_service import TableService, table_service
from worker_servers import INFO, LAW, draft_server, target_server

from coordinator.requests import GenerationRequest

PROMPT = "the rain in"
BYTES_ONLY = {str(id): -100 for id in (*range(32), *range(127, LAW.vocab_size))}
"""So that every token is one printable character, and a text tells its tokens."""
BODY: dict[str, Any] = {"max_tokens": 60, "temperature": 0.8, "seed": 3, "ignore_eos": True}


@pytest.fixture
async def service() -> AsyncIterator[TableService]:
    """Without any draft worker."""
    async with table_service(drafts=[]) as service:
        yield service


def body(path: str, **changes: Any) -> dict[str, Any]:
    prompt: dict[str, Any] = {"prompt": PROMPT}
    if path == CHAT:
        prompt = {"messages": [{"role": "user", "content": PROMPT}]}
    return {**prompt, **BODY, **changes}


def predicted(content: Any) -> dict[str, Any]:
    return {"type": "content", "content": content}


def details(answer: dict[str, Any]) -> tuple[int, int]:
    found = answer["usage"]["completion_tokens_details"]
    return found["accepted_prediction_tokens"], found["rejected_prediction_tokens"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_right_prediction_is_accepted_and_changes_nothing(
    service: TableService, path: str
) -> None:
    plain = await service.post(path, logit_bias=BYTES_ONLY, **body(path))
    assert "completion_tokens_details" not in plain["usage"]
    text = text_of(plain["choices"][0])
    assert table_tokenizer().encode_prediction(text) == tuple(text.encode())
    answer = await service.post(
        path, logit_bias=BYTES_ONLY, prediction=predicted(text), **body(path)
    )
    assert answer["choices"] == plain["choices"]
    accepted, rejected = details(answer)
    passes = answer["metrics"]["speculative_decoding"]["num_target_passes"]
    assert rejected == 0
    assert accepted == 60 - passes > 40
    assert answer["usage"]["completion_tokens"] == 60


async def test_wrong_parts_of_a_prediction_are_counted_as_rejected(service: TableService) -> None:
    plain = await service.post(COMPLETIONS, logit_bias=BYTES_ONLY, **body(COMPLETIONS))
    text = text_of(plain["choices"][0])
    wrong = f"{text[:20]}##{text[22:40]}"
    answer = await service.post(
        COMPLETIONS,
        logit_bias=BYTES_ONLY,
        prediction=predicted([{"type": "text", "text": wrong}]),
        **body(COMPLETIONS),
    )
    assert answer["choices"] == plain["choices"]
    accepted, rejected = details(answer)
    speculation = answer["metrics"]["speculative_decoding"]
    assert speculation["num_accepted_draft_tokens"] == accepted
    assert speculation["num_draft_tokens"] == accepted + rejected
    assert 20 < accepted < 40
    assert rejected > 0


async def test_drafts_behind_the_end_of_the_answer_count_as_rejected(
    service: TableService,
) -> None:
    plain = await service.post(COMPLETIONS, logit_bias=BYTES_ONLY, **body(COMPLETIONS))
    text = text_of(plain["choices"][0])
    asked = body(COMPLETIONS, logit_bias=BYTES_ONLY, stop=[text[28:31]])
    asked["speculation"] = {"method": "suffix", "num_speculative_tokens": 16}
    asked["prediction"] = predicted(text)
    async with table_service(drafts=[draft_server("suffix")]) as other:
        answer = await other.post(COMPLETIONS, **asked)
    assert text_of(answer["choices"][0]) == text[:28]
    num_tokens = answer["usage"]["completion_tokens"]
    assert num_tokens == 31
    accepted, rejected = details(answer)
    # One token, then rounds of 16 drafts and one: the second of them holds the stop.
    assert (accepted, rejected) == (16 + 13, 3)


async def test_switched_off_speculation_leaves_the_prediction_alone(service: TableService) -> None:
    asked = body(COMPLETIONS, prediction=predicted("abc"), speculation={"method": "off"})
    answer = await service.post(COMPLETIONS, **asked)
    assert details(answer) == (0, 0)
    assert answer["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0


async def test_choices_streams_and_grpc_count_alike(service: TableService) -> None:
    prediction = "there is nothing like it in the world"
    asked = body(COMPLETIONS, n=3, return_token_ids=True, prediction=predicted(prediction))
    whole = await service.post(COMPLETIONS, **asked)
    plain = await service.post(COMPLETIONS, **{**asked, "prediction": None})
    assert whole["choices"] == plain["choices"]
    events = await service.stream(COMPLETIONS, stream_options={"include_usage": True}, **asked)
    usage = events[-1].data["usage"]
    parts = await service.generate(prompt=PROMPT, n=3, prediction=prediction, **BODY)
    for found in (whole["usage"], usage):
        assert found["completion_tokens"] == 180
        assert set(found["completion_tokens_details"]) == {
            "accepted_prediction_tokens",
            "rejected_prediction_tokens",
        }
    assert parts[-1].usage.completion_tokens == 180
    for index in range(3):
        ids = [id for part in parts if part.choice == index for id in part.token_ids]
        assert ids == whole["choices"][index]["token_ids"]


async def test_a_request_with_a_prediction_is_resumed_with_it(service: TableService) -> None:
    plain = await service.post(COMPLETIONS, logit_bias=BYTES_ONLY, **body(COMPLETIONS))
    text = text_of(plain["choices"][0])
    generator = service.running.generator
    bias = tuple((int(id), value) for id, value in BYTES_ONLY.items())
    request = GenerationRequest("r", PROMPT, prediction=text, logit_bias=bias, **BODY)
    steps = generator.stream(await generator.prepare(request))
    had = (await anext(steps)).num_committed_tokens
    await steps.aclose()
    resumed = await generator.resume("r", (had,))
    rest = "".join([step.text async for step in generator.stream(resumed)])
    assert text[:had] + rest == text
    assert resumed.num_accepted_prediction_tokens > 40


async def test_every_part_of_an_answer_names_what_it_was_computed_with(
    service: TableService,
) -> None:
    whole = await service.post(CHAT, **body(CHAT))
    fingerprint = whole["system_fingerprint"]
    assert fingerprint.startswith("fp_")
    asked = body(CHAT, n=2, stream_options={"include_usage": True})
    events = await service.stream(CHAT, **asked)
    assert {event.data["system_fingerprint"] for event in events} == {fingerprint}
    parts = await service.generate(request_id="r", prompt=PROMPT, **BODY)
    again = await service.generate(request_id="r", resume_from=[0])
    assert {part.system_fingerprint for part in (*parts, *again)} == {fingerprint}


async def test_the_name_changes_when_the_answer_moves_to_other_arithmetic() -> None:
    targets = [target_server(info=replace(INFO, numerics=name)) for name in ("one", "other")]
    async with table_service(targets=targets, drafts=[]) as service:
        generator = service.running.generator
        names = []
        request = GenerationRequest("r", PROMPT, **BODY)
        generation = await generator.prepare(request)
        assert generation.system_fingerprint is None
        async for _ in generator.stream(generation):
            names.append(generation.system_fingerprint)
            if len(names) == 5:
                used = [t for t in targets if t.load.num_sequences]
                await used[0].kill()
        assert generation.numerics_changed
        assert names[0] == names[4] != names[-1]
        assert len(set(names)) == 2
