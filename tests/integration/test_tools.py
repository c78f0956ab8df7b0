"""Calls of tools, as OpenAI's own client sees them, on the table model."""

import json
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import openai
import pytest
from http_service import CHAT
from table_service import TableService, table_service
from tool_requests import ASKED, MESSAGES, NOW, ONE, SCHEMA, WEATHER
from worker_servers import draft_server


@pytest.fixture
async def service() -> AsyncIterator[TableService]:
    drafts = [draft_server("self"), draft_server("suffix")]
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


@pytest.mark.parametrize("method", ["off", "self", "suffix"])
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
