"""Tools, calls and formats in bodies: what is read, what is refused, and by which name."""

import json
from typing import Any

import pytest
from http_bodies import chat, completion, refusal

from coordinator.requests import ChatMessage
from coordinator.tools import Tool, ToolCall, ToolChoice

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Tells.", "parameters": {"type": "object"}},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"a": 1}'}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def call_with(arguments: str) -> dict[str, Any]:
    return CALL | {"function": {"name": "weather", "arguments": arguments}}


def test_calls_and_their_results_are_turns_of_a_chat() -> None:
    messages = [
        CALLING,
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "assistant", "content": "I ask.", "tool_calls": [call_with("")]},
    ]
    assert chat(messages=messages).prompt == (
        ChatMessage("assistant", "", (ToolCall("c1", "weather", '{"a": 1}'),)),
        ChatMessage("tool", "sunny", tool_call_id="c1"),
        ChatMessage("assistant", "I ask.", (ToolCall("c1", "weather", "{}"),)),
    )


def test_tools_arrive_with_the_choice_between_them() -> None:
    strict = {"type": "function", "function": {"name": "now", "strict": True}}
    request = chat(tools=[WEATHER, strict], parallel_tool_calls=False)
    assert request.tools == (
        Tool("weather", "Tells.", '{"type": "object"}'),
        Tool(
            "now",
            "",
            '{"type": "object", "properties": {}, "additionalProperties": false}',
            is_strict=True,
        ),
    )
    assert request.tool_choice is ToolChoice.AUTO and not request.parallel_tool_calls
    for word in ("none", "auto", "required"):
        request = chat(tools=[WEATHER], tool_choice=word)
        assert (request.tool_choice.value, request.tool_name) == (word, "")
    named = {"type": "function", "function": {"name": "weather"}}
    request = chat(tools=[WEATHER], tool_choice=named)
    assert (request.tool_choice, request.tool_name) == (ToolChoice.REQUIRED, "weather")


def test_a_response_format_becomes_a_schema() -> None:
    schema = {"type": "array", "default": None}
    wanted = {"name": "x", "description": "y", "schema": schema, "strict": True}
    for endpoint in (chat, completion):
        by_schema = endpoint(response_format={"type": "json_schema", "json_schema": wanted})
        assert json.loads(by_schema.response_schema) == schema
        any_object = endpoint(response_format={"type": "json_object"})
        assert json.loads(any_object.response_schema) == {"type": "object"}


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"type": "json_schema"}, "response_format"),
        ({"type": "text", "json_schema": {"schema": {}}}, "response_format"),
        (
            {"type": "json_schema", "json_schema": {"name": "x"}},
            "response_format.json_schema.schema",
        ),
        (
            {"type": "json_schema", "json_schema": {"schema": 1}},
            "response_format.json_schema.schema",
        ),
        ({"type": "xml"}, "response_format.type"),
        ({}, "response_format.type"),
        ("json", "response_format"),
    ],
)
def test_a_response_format_that_is_none_is_refused(value: Any, field: str) -> None:
    for endpoint in (chat, completion):
        assert refusal(endpoint, response_format=value).field == field


def test_a_completion_has_no_tools() -> None:
    assert completion(tools=[], tool_choice="none") == completion()
    for parameter, value in (("tools", [WEATHER]), ("tool_choice", "required")):
        assert refusal(completion, **{parameter: value}).field == parameter


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"messages": [CALLING | {"role": "user"}]}, "messages[0].tool_calls"),
        (
            {"messages": [{"role": "user", "content": "x", "tool_call_id": "y"}]},
            "messages[0].tool_call_id",
        ),
        (
            {"messages": [CALLING | {"tool_calls": [CALL | {"function": {"name": "f"}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [call_with("{")]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [call_with("[]")]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [WEATHER | {"function": {"name": "x", "more": 1}}]}, "tools[0].function.more"),
        ({"tools": [WEATHER] * 129}, "tools"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ],
)
def test_a_chat_is_refused_by_the_place_that_is_wrong(
    parameters: dict[str, Any], field: str
) -> None:
    assert refusal(chat, **parameters).field == field


def test_an_unknown_name_beside_a_schema_is_refused() -> None:
    wanted = {"schema": {"type": "object"}, "nme": "x"}
    error = refusal(chat, response_format={"type": "json_schema", "json_schema": wanted})
    assert error.field == "response_format.json_schema.nme"
