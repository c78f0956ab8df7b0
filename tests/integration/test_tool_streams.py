"""Calls of tools in streams that break, over HTTP and gRPC, and what gRPC refuses."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from http_service import CHAT, Event, parsed
from table_service import TableService, table_service
from tool_requests import NOW, ONE, SCHEMA, WEATHER
from waiting import SOON_S
from worker_servers import draft_server

from coordinator.tool_calls import ToolCallParser
from paceline.client import Client
from paceline.v1 import coordinator_pb2 as pb


@pytest.fixture
async def service() -> AsyncIterator[TableService]:
    async with table_service(drafts=[draft_server("self")]) as service:
        yield service


async def test_a_stream_that_breaks_off_goes_on_in_the_middle_of_a_call(
    service: TableService,
) -> None:
    body = {**ONE, "tools": [WEATHER], "tool_choice": "required", "request_id": "broken"}
    events = await service.stream(CHAT, **body)

    def pieces(found: list[Event]) -> list[dict[str, Any]]:
        deltas = [event.data["choices"][0]["delta"] for event in found]
        return [piece for delta in deltas for piece in delta.get("tool_calls", ())]

    whole = pieces(events)
    for kept in (2, 4, len(events) - 2):
        response = await service.client.post(
            CHAT, json={**body, "stream": True}, headers={"last-event-id": str(events[kept].id)}
        )
        assert response.status_code == 200, response.text
        *rest, done = parsed(response.content)
        assert done.data == "[DONE]"
        told = [*pieces(events[: kept + 1]), *pieces(rest)]
        assert told[0] == whole[0] and not any("id" in piece for piece in told[1:])
        arguments = ["".join(p["function"]["arguments"] for p in way) for way in (whole, told)]
        assert arguments[0] == arguments[1]
        assert rest[-1].data["choices"][0]["finish_reason"] == "tool_calls"
    other = {**body, "tools": [NOW], "stream": True}
    refused = await service.client.post(CHAT, json=other, headers={"last-event-id": "3"})
    assert refused.status_code == 400


def asked_over_grpc(**changes: Any) -> pb.GenerateRequest:
    fields = {
        "chat": pb.Chat(messages=[pb.ChatMessage(role="user", content="the rain in")]),
        "temperature": 1.0,
        "seed": 3,
        "max_tokens": 400,
        "tools": [
            pb.Tool(name="get_weather", description="Tells.", parameters=json.dumps(SCHEMA)),
            pb.Tool(name="now"),
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        **changes,
    }
    return pb.GenerateRequest(**fields)


async def collected(parts: AsyncIterator[pb.GenerateResponse]) -> tuple[str, str, str, int]:
    """Id, name and arguments of the only call, and the finish reason."""
    id = name = arguments = ""
    reason = pb.FINISH_REASON_UNSPECIFIED
    async for part in parts:
        assert not part.text
        for delta in part.tool_calls:
            assert delta.number == 0
            id, name, arguments = id + delta.id, name + delta.name, arguments + delta.arguments
        reason = part.finish_reason or reason
    return id, name, arguments, reason


async def test_over_grpc_calls_are_the_same_also_when_the_stream_breaks(
    service: TableService,
) -> None:
    whole = await service.post(CHAT, **ONE, tool_choice="required")
    [expected] = whole["choices"][0]["message"]["tool_calls"]
    async with Client(service.grpc_address) as client:
        found = await collected(client.generate(asked_over_grpc()))
        assert found[1:] == (
            expected["function"]["name"],
            expected["function"]["arguments"],
            pb.FINISH_REASON_TOOL_CALLS,
        )

        async def broken() -> AsyncIterator[pb.GenerateResponse]:
            num_parts = 0
            async for part in client.generate(asked_over_grpc(request_id="again")):
                yield part
                num_parts += 1
                if num_parts in (3, 6):
                    await service.restart_grpc()

        again = await asyncio.wait_for(collected(broken()), SOON_S)
    assert again[1:] == found[1:]
    assert again[0] == ToolCallParser("again/0")._id(0)


async def test_over_grpc_tools_need_a_conversation_and_a_known_choice(
    service: TableService,
) -> None:
    for changes, message in (
        ({"chat": None, "prompt": "x"}, "tools: are set beside a prompt"),
        ({"tool_choice": "perhaps"}, "tool_choice: is 'perhaps'"),
        ({"tool_name": "other"}, "tool_choice: is 'other'"),
    ):
        asked = asked_over_grpc(**changes)
        fields = {field.name: value for field, value in asked.ListFields()}
        with pytest.raises(Exception, match=message):
            await service.generate(**fields)
