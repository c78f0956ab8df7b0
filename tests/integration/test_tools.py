"""Calls of tools, as OpenAI's own client and gRPC see them, on the table model."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import openai
import pytest
from http_service import CHAT, Event, parsed
from table_service import TableService, table_service
from worker_servers import draft_server

from coordinator.tool_calls import ToolCallParser
from paceline.client import Client
from paceline.v1 import coordinator_pb2 as pb

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[a-z]{1,12}$"},
        "unit": {"$ref": "#/$defs/unit"},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["celsius", "fahrenheit"]}},
}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Tells.", "parameters": SCHEMA},
}
NOW: Any = {"type": "function", "function": {"name": "now"}}
MESSAGES: Any = [{"role": "user", "content": "the rain in"}]
ASKED: Any = {
    "model": "table:7",
    "messages": MESSAGES,
    "temperature": 1.0,
    "seed": 3,
    "max_tokens": 400,
    "tools": [WEATHER, NOW],
}
ONE: Any = {**ASKED, "parallel_tool_calls": False}


@pytest.fixture
async def service() -> AsyncIterator[TableService]:
    drafts = [draft_server("self"), draft_server("prompt-lookup")]
    async with table_service(drafts=drafts) as service:
        yield service


@pytest.fixture
async def client(service: TableService) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{service.url}/v1", api_key="none", max_retries=0
    ) as client:
        yield client


def check_call(call: Any, name: str | None = None) -> None:
    assert call.type == "function"
    assert call.id.startswith("call_")
    assert call.function.name == name or name is None
    schema = SCHEMA if call.function.name == "get_weather" else {"maxProperties": 0}
    jsonschema.validate(json.loads(call.function.arguments), schema)


async def test_a_required_call_meets_its_schema(client: openai.AsyncOpenAI) -> None:
    for seed in range(4):
        answer = await client.chat.completions.create(
            **{**ONE, "seed": seed}, tool_choice="required"
        )
        [choice] = answer.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        [call] = choice.message.tool_calls or []
        check_call(call)


async def test_a_named_function_is_called_once(client: openai.AsyncOpenAI) -> None:
    for name in ("get_weather", "now"):
        answer = await client.chat.completions.create(
            **ASKED, tool_choice={"type": "function", "function": {"name": name}}
        )
        [call] = answer.choices[0].message.tool_calls or []
        check_call(call, name)
        assert answer.choices[0].finish_reason == "tool_calls"


async def test_parallel_calls_come_one_behind_the_other(client: openai.AsyncOpenAI) -> None:
    bias = {str(ord("\n")): 100}  # to go on with another call
    answer = await client.chat.completions.create(
        **{**ASKED, "tool_choice": "required", "logit_bias": bias, "tools": [NOW]}
    )
    [choice] = answer.choices
    calls = choice.message.tool_calls or []
    assert choice.finish_reason == "length"
    assert len(calls) > 2 and len({call.id for call in calls}) == len(calls)
    for call in calls[:-1]:
        check_call(call, "now")


@pytest.mark.parametrize("n", [1, 3])
async def test_a_stream_brings_the_same_calls_in_pieces(client: openai.AsyncOpenAI, n: int) -> None:
    asked = {**ONE, "tools": [WEATHER], "tool_choice": "required", "n": n}
    whole = await client.chat.completions.create(**asked)
    found: list[dict[str, Any]] = [{} for _ in range(n)]
    reasons: list[str | None] = [None] * n
    num_pieces = 0
    async for chunk in await client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            assert not choice.delta.content
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
            for delta in choice.delta.tool_calls or []:
                num_pieces += 1
                assert delta.index == 0 and delta.function is not None
                call = found[choice.index]
                if not call:
                    call |= {"id": delta.id, "name": delta.function.name, "arguments": ""}
                else:
                    assert delta.id is None and delta.function.name is None
                call["arguments"] += delta.function.arguments or ""
    assert reasons == ["tool_calls"] * n
    assert num_pieces > 2 * n
    for choice, call in zip(whole.choices, found, strict=True):
        [expected] = choice.message.tool_calls or []
        assert call["name"] == expected.function.name
        assert call["arguments"] == expected.function.arguments
    assert len({call["id"] for call in found}) == n


async def test_the_clients_stream_helper_puts_calls_together(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(**ONE, tool_choice="required") as stream:
        async for _ in stream:
            pass
        answer = await stream.get_final_completion()
    [call] = answer.choices[0].message.tool_calls or []
    check_call(call)


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


@pytest.mark.parametrize("method", ["off", "self", "prompt-lookup"])
async def test_speculation_changes_no_call(service: TableService, method: str) -> None:
    body = {**ONE, "tool_choice": "required", "return_token_ids": True}
    plain = await service.post(CHAT, **body, speculation={"method": "off"})
    speculation = {"method": method, "num_speculative_tokens": 5}
    other = await service.post(CHAT, **body, speculation=speculation)
    assert other["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]
    calls = [answer["choices"][0]["message"]["tool_calls"][0] for answer in (plain, other)]
    assert calls[0]["function"] == calls[1]["function"]


async def test_a_conversation_goes_on_with_calls_and_results(client: openai.AsyncOpenAI) -> None:
    first = await client.chat.completions.create(**ONE, tool_choice="required")
    message = first.choices[0].message
    [call] = message.tool_calls or []
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    # As the client's own documents have it: the message itself goes back in.
    follow_up = await client.chat.completions.create(
        **{**ASKED, "messages": [*MESSAGES, message, result], "max_tokens": 5}
    )
    assert follow_up.choices[0].message.role == "assistant"
    assert follow_up.usage is not None and first.usage is not None
    assert follow_up.usage.prompt_tokens > first.usage.prompt_tokens


async def test_without_need_of_a_call_the_text_is_free(client: openai.AsyncOpenAI) -> None:
    for choice in ("auto", "none"):
        answer = await client.chat.completions.create(
            **{**ASKED, "tool_choice": choice, "max_tokens": 40}
        )
        assert answer.choices[0].message.content
        assert answer.choices[0].message.tool_calls is None
        assert answer.choices[0].finish_reason in ("stop", "length")


async def test_with_none_the_model_does_not_even_see_the_tools(
    client: openai.AsyncOpenAI,
) -> None:
    asked = {**ASKED, "max_tokens": 5}
    counts = [
        (await client.chat.completions.create(**request)).usage
        for request in (
            {**asked, "tool_choice": "none"},
            {name: value for name, value in asked.items() if name != "tools"},
            asked,
        )
    ]
    assert counts[0] == counts[1]
    assert counts[2] is not None and counts[0] is not None
    assert counts[2].prompt_tokens > counts[0].prompt_tokens


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "other"}}},
            "tool_choice",
        ),
        ({"tools": [NOW, NOW]}, "tools[1].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 1}}}]},
            "tools[0].function.parameters.type",
        ),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "f",
                            "parameters": {"properties": {"a": {"type": "nonsense"}}},
                        },
                    }
                ]
            },
            "tools[0].function.parameters",
        ),
    ],
)
async def test_what_cannot_be_called_is_refused_by_name(
    client: openai.AsyncOpenAI, changes: Any, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**{**ASKED, **changes})
    assert caught.value.param == param


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

        again = await asyncio.wait_for(collected(broken()), 20)
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
