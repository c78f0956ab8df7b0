"""Streams over HTTP that break off and go on: the same POST again, with a `Last-Event-ID`."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from http_service import CHAT, COMPLETIONS, Event, parsed, text_of
from redis_server import ManagedRedis
from scripted_generator import served
from table_service import TableService, table_service

from coordinator.admission import Limits
from coordinator.generator import Generator
from coordinator.metrics import Metrics
from coordinator.session_store import open_session_store


@pytest.fixture
async def service() -> AsyncIterator[TableService]:
    async with table_service() as service:
        yield service


def body(path: str, **changes: Any) -> dict[str, Any]:
    prompt: dict[str, Any] = {"prompt": "the rain in"}
    if path == CHAT:
        prompt = {"messages": [{"role": "user", "content": "the rain in"}]}
    return {
        **prompt,
        "request_id": "mine",
        "max_tokens": 50,
        "temperature": 1.0,
        "seed": 9,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        **changes,
    }


async def resumed(service: TableService, last: str | None, asked: dict[str, Any], path: str) -> Any:
    return await service.client.post(path, json=asked, headers={"last-event-id": last or ""})


def said(events: list[Event], index: int = 0) -> tuple[str, list[int]]:
    choices = [choice for event in events for choice in event.data["choices"]]
    own = [choice for choice in choices if choice["index"] == index]
    text = "".join(map(text_of, own))
    return text, [token_id for choice in own for token_id in choice["token_ids"]]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_stream_goes_on_behind_any_of_its_events(
    service: TableService, path: str, n: int
) -> None:
    whole = await service.stream(path, **body(path, n=n))
    for number in range(0, len(whole), 5):
        response = await resumed(service, whole[number].id, body(path, n=n), path)
        assert response.status_code == 200, response.text
        *rest, done = parsed(response.content)
        assert done.data == "[DONE]"
        for index in range(n):
            had, got = said(whole[: number + 1], index), said(rest, index)
            assert (had[0] + got[0], had[1] + got[1]) == said(whole, index)
        assert rest[-1].data["usage"] == whole[-1].data["usage"]
        assert rest[-1].id == whole[-1].id
        assert {event.data["id"] for event in rest} == {whole[0].data["id"]}


async def test_an_echo_is_not_said_again_and_every_token_has_its_log_probability_once(
    service: TableService,
) -> None:
    asked = body(COMPLETIONS, echo=True, logprobs=2)

    def told(events: list[Event]) -> tuple[str, list[Any]]:
        choices = [choice for event in events for choice in event.data["choices"]]
        parts = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        entries = [entry for part in parts for entry in zip(*part.values(), strict=True)]
        return "".join(map(text_of, choices)), entries

    whole = await service.stream(COMPLETIONS, **asked)
    assert told(whole)[0].startswith("the rain in")
    assert len(told(whole)[1]) == 1 + len("the rain in") + 50
    for number in range(0, len(whole), 4):
        response = await resumed(service, whole[number].id, asked, COMPLETIONS)
        had, got = told(whole[: number + 1]), told(parsed(response.content)[:-1])
        assert (had[0] + got[0], had[1] + got[1]) == told(whole)


async def test_echoes_of_choices_without_tokens_are_not_guessed_at(service: TableService) -> None:
    asked = body(COMPLETIONS, echo=True, n=2)
    await service.stream(COMPLETIONS, **asked)
    response = await resumed(service, "3,0", asked, COMPLETIONS)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "last-event-id")
    response = await resumed(service, "3,1", asked, COMPLETIONS)
    assert response.status_code == 200


async def test_a_stream_that_its_client_left_goes_on(service: TableService) -> None:
    asked = body(COMPLETIONS, max_tokens=400)
    had = b""
    async with service.client.stream("POST", COMPLETIONS, json=asked) as response:
        async for piece in response.aiter_bytes():
            had += piece
            if len(had) > 4000:
                break
    events = parsed(had[: had.rindex(b"\n\n") + 2])
    await service.running.until_free()
    response = await resumed(service, events[-1].id, asked, COMPLETIONS)
    *rest, _ = parsed(response.content)
    again = await service.stream(COMPLETIONS, **{**asked, "request_id": "other"})
    assert said([*events, *rest]) == said(again)
    assert len(said(again)[1]) == 400


async def test_a_stream_goes_on_at_another_coordinator(
    service: TableService, redis_server: ManagedRedis
) -> None:
    asked = body(CHAT)
    stores = [await open_session_store(redis_server.url) for _ in "ab"]
    generators = [Generator(service.running.pool, store, Metrics(), Limits()) for store in stores]
    for generator in generators:
        await generator.load_tokenizer()
    async with (
        served(generators[0], Metrics()) as first,
        served(generators[1], Metrics()) as other,
    ):
        response = await service.client.post(f"{first}{CHAT}", json=asked)
        whole = parsed(response.content)[:-1]
        await stores[0].aclose()
        response = await service.client.post(
            f"{other}{CHAT}", json=asked, headers={"last-event-id": whole[7].id or ""}
        )
        rest = parsed(response.content)[:-1]
        assert said([*whole[:8], *rest]) == said(whole)
    await stores[1].aclose()


@pytest.mark.parametrize(
    ("last", "changes", "status", "param"),
    [
        ("5", {"request_id": "unknown"}, 404, "request_id"),
        ("5", {"request_id": None}, 400, "request_id"),
        ("5", {"stream": False, "stream_options": None}, 400, "last-event-id"),
        ("", {}, 400, "last-event-id"),
        ("-5", {}, 400, "last-event-id"),
        ("5,", {}, 400, "last-event-id"),
        ("x", {}, 400, "last-event-id"),
        ("51", {}, 400, "last-event-id"),
        ("5,5", {}, 400, "last-event-id"),
        ("5", {"max_tokens": 49}, 400, "max_tokens"),
        ("5", {"seed": None}, 400, "seed"),
        ("5", {"n": 2}, 400, "n"),
        ("5", {"prompt": "the rain"}, 400, "prompt"),
        ("5", {"speculation": {"method": "off"}}, 400, "speculation"),
    ],
)
async def test_only_the_same_stream_goes_on(
    service: TableService, last: str, changes: dict[str, Any], status: int, param: str
) -> None:
    whole = await service.stream(COMPLETIONS, **body(COMPLETIONS))
    response = await resumed(service, last, body(COMPLETIONS, **changes), COMPLETIONS)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")
    response = await resumed(service, whole[3].id, body(COMPLETIONS), COMPLETIONS)
    assert said([*whole[:4], *parsed(response.content)[:-1]]) == said(whole)


async def test_a_name_is_taken_once(service: TableService) -> None:
    answer = await service.post(COMPLETIONS, request_id="mine", prompt="x")
    assert answer["id"] == "cmpl-mine"
    again = await service.client.post(COMPLETIONS, json={"request_id": "mine", "prompt": "x"})
    assert (again.status_code, again.json()["error"]["param"]) == (400, "request_id")


async def test_what_was_said_under_the_same_name_can_be_had_again(service: TableService) -> None:
    whole = await service.stream(CHAT, **body(CHAT))
    response = await resumed(service, "0", body(CHAT), CHAT)
    assert said(parsed(response.content)[:-1]) == said(whole)


async def test_a_stream_of_tool_calls_goes_on_in_mid_call(service: TableService) -> None:
    function = {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "pattern": "^[a-z]{5,20}$"}},
            "required": ["city"],
        },
    }
    tools = [{"type": "function", "function": function}]
    asked = body(CHAT, tools=tools, tool_choice="required", max_tokens=300, ignore_eos=False)

    def calls(events: list[Event]) -> tuple[list[str], str]:
        deltas = [choice["delta"] for event in events for choice in event.data["choices"]]
        found = [call for delta in deltas for call in delta.get("tool_calls", ())]
        ids = [call["id"] for call in found if "id" in call]
        return ids, "".join(call["function"].get("arguments", "") for call in found)

    whole = await service.stream(CHAT, **asked)
    assert calls(whole)[0]
    for number in range(0, len(whole), 3):
        response = await resumed(service, whole[number].id, asked, CHAT)
        rest = parsed(response.content)[:-1]
        had, got = calls(whole[: number + 1]), calls(rest)
        assert (had[0] + got[0], had[1] + got[1]) == calls(whole)
        assert rest[-1].data["usage"] == whole[-1].data["usage"]
