"""Several choices of one request, on real workers, over every front end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from http_service import CHAT, COMPLETIONS, text_of
from plain_text import plain_text
from real_tokenizers import table_tokenizer
from table_service import TableService, table_service
from worker_servers import LAW, target_server

from coordinator.admission import MAX_CHOICES, Limits
from coordinator.requests import GenerationRequest, GenerationStep
from paceline.client import Client
from paceline.engine.table_model import BOS_ID, EOS_ID
from paceline.errors import InvalidRequest, Overloaded
from paceline.rounds import SequenceSettings
from paceline.v1 import coordinator_pb2 as pb

PROMPT = "the rain in"
PROMPT_IDS = [BOS_ID, *PROMPT.encode()]
SAMPLED: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 40, "temperature": 1.0, "seed": 7}


@pytest.fixture
async def service() -> AsyncIterator[TableService]:
    async with table_service() as service:
        yield service


def said_alone(choice: int, *, eos: bool = True, max_tokens: int = 40, seed: int = 7) -> list[int]:
    """What the target says to `SAMPLED` as this choice, walked without a service."""
    settings = SequenceSettings(
        max_length=len(PROMPT_IDS) + max_tokens,
        temperature=1.0,
        seed=seed,
        choice=choice,
        stop_token_ids=(EOS_ID,) if eos else (),
    )
    return plain_text(LAW, PROMPT_IDS, settings)


def request(**changes: Any) -> GenerationRequest:
    fields = {"request_id": "r", "ignore_eos": True, **SAMPLED, **changes}
    return GenerationRequest(**fields)


def of_choice(steps: list[GenerationStep], choice: int) -> list[int]:
    return [token_id for step in steps if step.choice == choice for token_id in step.token_ids]


async def test_each_choice_is_what_the_target_says_with_its_noise(service: TableService) -> None:
    # By name and number: drafts that are left to the coordinator may all come too late to pay.
    drafts = {"method": "self", "num_speculative_tokens": 4}
    answer = await service.post(
        COMPLETIONS, n=4, return_token_ids=True, speculation=drafts, **SAMPLED
    )
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    ids = [choice["token_ids"] for choice in choices]
    assert ids == [said_alone(choice) for choice in range(4)]
    assert len({tuple(said) for said in ids}) == 4
    reasons = ["stop" if said[-1] == EOS_ID else "length" for said in ids]
    assert [choice["finish_reason"] for choice in choices] == reasons
    texts = [table_tokenizer().decode(said) for said in ids]
    assert [choice["text"] for choice in choices] == texts
    assert answer["usage"]["prompt_tokens"] == len(PROMPT_IDS)
    assert answer["usage"]["completion_tokens"] == sum(map(len, ids))
    assert answer["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0
    alone = await service.post(COMPLETIONS, return_token_ids=True, **SAMPLED)
    assert alone["choices"][0] == choices[0]


async def test_greedy_choices_are_equal(service: TableService) -> None:
    answer = await service.post(COMPLETIONS, n=4, **{**SAMPLED, "temperature": 0})
    assert len({choice["text"] for choice in answer["choices"]}) == 1
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_stream_interleaves_the_choices_and_ends_each_once(
    service: TableService, path: str
) -> None:
    body = {**SAMPLED, "n": 3, "return_token_ids": True, "stream_options": {"include_usage": True}}
    if path == CHAT:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    events = await service.stream(path, **body)
    *chunks, usage = [event.data for event in events]
    del body["stream_options"]
    whole = await service.post(path, **body)
    choices = [chunk["choices"][0] for chunk in chunks]
    order = [choice["index"] for choice in choices]
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        expected = whole["choices"][index]
        assert "".join(map(text_of, own)) == text_of(expected)
        assert [id for choice in own for id in choice["token_ids"]] == expected["token_ids"]
        reasons = [choice["finish_reason"] for choice in own]
        assert reasons == [None] * (len(own) - 1) + [expected["finish_reason"]]
        if path == CHAT:
            assert own[0]["delta"] == {"role": "assistant", "content": ""}
            assert all("role" not in choice["delta"] for choice in own[1:])
    assert order != sorted(order)
    assert usage["choices"] == []
    assert usage["usage"] == whole["usage"]
    assert sum("prompt_token_ids" in chunk for chunk in chunks) == 1
    last_id = events[-1].id
    assert last_id == ",".join(str(len(choice["token_ids"])) for choice in whole["choices"])


async def test_grpc_says_which_choice_a_part_belongs_to(service: TableService) -> None:
    parts = await service.generate(n=3, **SAMPLED)
    for index in range(3):
        own = [part for part in parts if part.choice == index]
        assert [id for part in own for id in part.token_ids] == said_alone(index)
        assert own[-1].num_committed_tokens == len(said_alone(index))
        assert [bool(part.finish_reason) for part in own] == [False] * (len(own) - 1) + [True]
    *others, last = parts
    assert not any(part.HasField("usage") for part in others)
    assert last.usage.prompt_tokens == len(PROMPT_IDS)
    assert last.usage.completion_tokens == sum(len(said_alone(index)) for index in range(3))


async def test_a_stop_ends_its_own_choice_only(service: TableService) -> None:
    text = table_tokenizer().decode(said_alone(1, eos=False))
    stop = text[5:8]
    fields = {**SAMPLED, "n": 3, "ignore_eos": True, "stop": [stop]}
    answer = await service.post(COMPLETIONS, **fields)
    for index, choice in enumerate(answer["choices"]):
        full = table_tokenizer().decode(said_alone(index, eos=False))
        assert choice["text"] == full.split(stop)[0]
        assert choice["finish_reason"] == ("stop" if stop in full else "length")
    reasons = {choice["finish_reason"] for choice in answer["choices"]}
    assert reasons == {"stop", "length"}


async def test_the_prompt_is_computed_once(service: TableService) -> None:
    prompt = "x" * 1000
    rows = 0
    verifier = service.running.targets[0]._stepper
    step = verifier.step

    def counted() -> Any:
        nonlocal rows
        results = step()
        rows += sum(result.timing.pass_rows for result in results or [])
        return results

    verifier.step = counted  # type: ignore[method-assign]
    body = {**SAMPLED, "prompt": prompt, "max_tokens": 1, "n": 4, "speculation": {"method": "off"}}
    await service.post(COMPLETIONS, **body)
    assert rows < 1500


async def test_a_client_that_leaves_frees_all_choices(service: TableService) -> None:
    long = request(n=5, max_tokens=3000)
    steps = service.running.generator.stream(await service.running.generator.prepare(long))
    async with aclosing(steps):
        seen: set[int] = set()
        async for step in steps:
            seen.add(step.choice)
            if len(seen) == 5:
                break
        assert service.running.generator.status().num_running == 5
        assert service.running.targets[0].load.num_sequences == 5
    assert service.running.generator.status().num_running == 0
    await service.running.until_free()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_connection_that_is_cut_frees_all_choices(service: TableService, path: str) -> None:
    body = {**SAMPLED, "n": 4, "max_tokens": 3000, "ignore_eos": True, "stream": True}
    if path == CHAT:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    async with service.client.stream("POST", path, json=body) as response:
        num_lines = 0
        async for _ in response.aiter_lines():
            num_lines += 1
            if num_lines > 50:
                break
    await service.running.until_free()
    assert service.running.generator.status().num_running == 0


async def test_all_choices_count_against_the_limits() -> None:
    limits = Limits(max_running_requests=2, max_waiting_requests=3)
    async with table_service(limits=limits) as service:
        generator = service.running.generator
        with pytest.raises(InvalidRequest, match="n: is 6; expected at most 5"):
            await generator.prepare(request(n=6))
        three = generator.stream(await generator.prepare(request(request_id="three", n=3)))
        steps = [await anext(three)]
        with pytest.raises(Overloaded, match="3 requests are running or waiting"):
            await generator.prepare(request(request_id="other", n=3))
        await generator.prepare(request(request_id="third", n=2))
        async for step in three:
            steps.append(step)
            assert service.running.targets[0].load.num_sequences <= 2
        assert [of_choice(steps, i) for i in range(3)] == [
            said_alone(i, eos=False) for i in range(3)
        ]


async def test_requests_that_come_at_once_count_against_the_limits() -> None:
    """As soon as they arrive: admission gives way to others before an answer begins."""
    limits = Limits(max_running_requests=2, max_waiting_requests=3)
    async with table_service(limits=limits) as service:
        generator = service.running.generator

        async def answered(index: int) -> bool:
            try:
                generation = await generator.prepare(request(request_id=f"at-once-{index}"))
            except Overloaded:
                return False
            return bool([step async for step in generator.stream(generation)])

        assert sum(await asyncio.gather(*map(answered, range(20)))) == 5
        assert await answered(20), "the room of those that were refused is free"


async def test_the_others_go_on_when_a_choice_moves_to_another_target() -> None:
    async with table_service(targets=[target_server(), target_server()]) as service:
        generator = service.running.generator
        steps = []
        async with aclosing(generator.stream(await generator.prepare(request(n=4)))) as stream:
            async for step in stream:
                steps.append(step)
                if len(steps) == 10:
                    await service.running.targets[0].kill()
        assert [of_choice(steps, i) for i in range(4)] == [
            said_alone(i, eos=False) for i in range(4)
        ]


@pytest.mark.parametrize("num_parts", [(0, 0, 0), (3, 0, 5), (-1, -1, -1), (-1, 2, 0)])
async def test_choices_are_resumed_each_behind_what_the_client_has(
    service: TableService, num_parts: tuple[int, ...]
) -> None:
    whole = await service.generate(request_id="r", n=3, ignore_eos=True, **SAMPLED)
    first = [[part for part in whole if part.choice == index] for index in range(3)]
    had = [own[: len(own) if num < 0 else num] for own, num in zip(first, num_parts, strict=True)]
    numbers = [own[-1].num_committed_tokens if own else 0 for own in had]
    parts = await service.generate(request_id="r", resume_from=numbers)
    for index in range(3):
        own = [part for part in parts if part.choice == index]
        ids = [id for part in own for id in part.token_ids]
        assert ids == said_alone(index, eos=False)[numbers[index] :]
        text = "".join(part.text for part in (*had[index], *own))
        assert text == "".join(part.text for part in first[index])
        assert own[-1].finish_reason == pb.FINISH_REASON_LENGTH
    assert parts[-1].usage.completion_tokens == 3 * 40


async def test_a_client_goes_on_with_all_choices_when_the_stream_breaks(
    service: TableService,
) -> None:
    asked = pb.GenerateRequest(n=3, ignore_eos=True, **{**SAMPLED, "max_tokens": 300})
    ids: dict[int, list[int]] = {0: [], 1: [], 2: []}
    num_parts = 0
    async with (
        Client(service.grpc_address) as client,
        aclosing(client.generate(asked)) as parts,
    ):
        async for part in parts:
            ids[part.choice] += part.token_ids
            num_parts += 1
            if num_parts == 20:
                await service.restart_grpc()
    for index in range(3):
        assert ids[index] == said_alone(index, eos=False, max_tokens=300)


async def test_the_most_choices_work(service: TableService) -> None:
    answer = await service.post(COMPLETIONS, n=MAX_CHOICES, **{**SAMPLED, "max_tokens": 3})
    assert [choice["index"] for choice in answer["choices"]] == list(range(MAX_CHOICES))
