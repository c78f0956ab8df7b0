"""OpenAI's own client against the whole service on the table model."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
from table_service import TableService, table_service
from waiting import until

from coordinator.admission import Limits

MESSAGES: Any = [{"role": "user", "content": "the rain in"}]
SAMPLED: Any = {"temperature": 0.9, "seed": 4, "extra_body": {"ignore_eos": True}}
LONG = {**SAMPLED, "max_tokens": 3000}


@pytest.fixture
async def service() -> AsyncIterator[TableService]:
    async with table_service() as service:
        yield service


def options(service: TableService, **changes: Any) -> Any:
    return {"base_url": f"{service.url}/v1", "api_key": "none", "max_retries": 0, **changes}


def chat(client: Any, **parameters: Any) -> Any:
    return client.chat.completions.create(model="table:7", messages=MESSAGES, **parameters)


def completion(client: Any, **parameters: Any) -> Any:
    return client.completions.create(model="table:7", prompt="the rain in", **parameters)


def content_of(choice: Any) -> str:
    """The text of a choice, or what a chunk adds to it."""
    part = getattr(choice, "message", None) or getattr(choice, "delta", None)
    return (part.content if part else choice.text) or ""


Create = Callable[..., Any]


@pytest.mark.parametrize("create", [chat, completion])
async def test_both_clients_get_the_same_answer_whole_and_streamed(
    service: TableService, create: Create
) -> None:
    asked = {**SAMPLED, "max_tokens": 40, "n": 3}
    streamed = {**asked, "stream": True, "stream_options": {"include_usage": True}}

    def texts(chunks: list[Any]) -> list[str]:
        choices = [choice for chunk in chunks for choice in chunk.choices]
        return [
            "".join(content_of(choice) for choice in choices if choice.index == index)
            for index in range(3)
        ]

    def blocking() -> tuple[Any, list[Any]]:
        with openai.OpenAI(**options(service)) as client:
            return create(client, **asked), list(create(client, **streamed))

    whole, chunks = await asyncio.to_thread(blocking)
    async with openai.AsyncOpenAI(**options(service)) as client:
        other = await create(client, **asked)
        others = [chunk async for chunk in await create(client, **streamed)]
    expected = [content_of(choice) for choice in whole.choices]
    assert len(set(expected)) == 3
    assert [content_of(choice) for choice in other.choices] == expected
    assert texts(chunks) == texts(others) == expected
    assert chunks[-1].usage == others[-1].usage == whole.usage == other.usage
    assert whole.usage.completion_tokens == 120
    assert {chunk.system_fingerprint for chunk in chunks} == {whole.system_fingerprint}
    assert {choice.finish_reason for choice in whole.choices} == {"length"}


async def test_a_prediction_is_counted_in_the_clients_usage(service: TableService) -> None:
    asked = {**SAMPLED, "max_tokens": 40, "logit_bias": {str(id): -100 for id in range(128, 261)}}
    async with openai.AsyncOpenAI(**options(service)) as client:
        plain = await chat(client, **asked)
        assert plain.usage.completion_tokens_details is None
        text = content_of(plain.choices[0])
        answer = await chat(client, prediction={"type": "content", "content": text}, **asked)
    assert content_of(answer.choices[0]) == text
    details = answer.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > 30
    assert details.rejected_prediction_tokens == 0


@pytest.mark.parametrize("create", [chat, completion])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_stream_that_is_closed_midway_frees_everything(
    service: TableService, create: Create, n: int
) -> None:
    def blocking() -> None:
        with (
            openai.OpenAI(**options(service)) as client,
            create(client, stream=True, n=n, **LONG) as stream,
        ):
            for _ in range(10):
                next(stream)

    await asyncio.to_thread(blocking)
    await service.running.until_free()
    async with openai.AsyncOpenAI(**options(service)) as client:
        async with await create(client, stream=True, n=n, **LONG) as stream:
            for _ in range(10):
                await anext(stream)
            assert service.running.targets[0].load.num_sequences == n
        await service.running.until_free()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_task_that_is_cancelled_frees_everything(
    service: TableService, stream: bool
) -> None:
    async with openai.AsyncOpenAI(**options(service)) as client:

        async def ask() -> None:
            answer = await chat(client, stream=stream, **LONG)
            if stream:
                async for _ in answer:
                    pass

        task = asyncio.create_task(ask())
        await until(lambda: service.running.targets[0].load.num_sequences > 0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await service.running.until_free()


async def test_a_time_out_of_the_client_frees_everything(service: TableService) -> None:
    async with openai.AsyncOpenAI(**options(service, timeout=0.3)) as client:
        with pytest.raises(openai.APITimeoutError):
            await chat(client, n=3, **LONG)
    await service.running.until_free()
    assert service.running.generator.status().num_running == 0


async def statuses_of(client: openai.AsyncOpenAI) -> list[int]:
    """A list to which the client's responses add their statuses."""
    statuses: list[int] = []

    async def note(response: Any) -> None:
        statuses.append(response.status_code)

    client._client.event_hooks["response"].append(note)
    return statuses


async def test_a_full_service_is_tried_again_when_it_said_so() -> None:
    limits = Limits(max_running_requests=1, max_waiting_requests=0)
    async with (
        table_service(limits=limits) as service,
        openai.AsyncOpenAI(**options(service, max_retries=5)) as client,
    ):
        statuses = await statuses_of(client)
        holding = await chat(client, stream=True, **LONG)
        await anext(holding)
        with pytest.raises(openai.RateLimitError) as refusal:
            await chat(client.with_options(max_retries=0), **SAMPLED)
        assert float(refusal.value.response.headers["retry-after-ms"]) > 0
        assert refusal.value.response.headers["x-should-retry"] == "true"
        asking = asyncio.create_task(chat(client, max_tokens=5, **SAMPLED))
        await until(lambda: statuses.count(429) >= 2)
        await holding.close()
        answer = await asking
        assert answer.usage.completion_tokens == 5
        assert statuses[-1] == 200


async def test_a_service_that_is_not_ready_is_tried_again() -> None:
    async with (
        table_service(wait=False) as service,
        openai.AsyncOpenAI(**options(service, max_retries=5)) as client,
    ):
        statuses = await statuses_of(client)
        asking = asyncio.create_task(chat(client, max_tokens=5, **SAMPLED))
        await until(lambda: 503 in statuses)
        await service.running.until_ready()
        assert (await asking).usage.completion_tokens == 5
        assert statuses[-1] == 200
        assert set(statuses) == {503, 200}


async def test_what_can_never_work_is_not_tried_again(service: TableService) -> None:
    async with openai.AsyncOpenAI(**options(service, max_retries=5)) as client:
        statuses = await statuses_of(client)
        with pytest.raises(openai.BadRequestError, match="n: is 17; expected less than or equal"):
            await chat(client, n=17)
        assert statuses == [400]
