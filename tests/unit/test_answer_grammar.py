"""What a request's format and tools make of its answer's grammar."""

import json
from dataclasses import replace

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from coordinator.answer_grammar import ANY_OBJECT, answer_grammar
from coordinator.requests import ChatMessage, GenerationRequest
from coordinator.tools import Tool, ToolChoice
from paceline.errors import InvalidRequest

REQUEST = GenerationRequest(request_id="r", prompt=(ChatMessage("user", "Hi"),))
WEATHER = Tool(
    "weather",
    "Tells the weather.",
    json.dumps(
        {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"city": {"enum": ["Paris", "Rome"]}},
        }
    ),
)
TIME = Tool("time", "", '{"properties": {"zone": {"type": "string"}}}')


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


PARIS = call("weather", '{"city": "Paris"}')
NOW = call("time", "{}")


def fits(request: GenerationRequest, text: str) -> bool:
    """Whether the text, as a whole, is an answer that the grammar allows."""
    matcher = LLMatcher(LLTokenizer("byte"), answer_grammar(request), log_level=0)
    assert not matcher.is_error()
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


def with_tools(*tools: Tool, **changes: object) -> GenerationRequest:
    return replace(REQUEST, tools=tools or (WEATHER, TIME), **changes)


def test_without_format_and_tools_there_is_no_grammar() -> None:
    assert answer_grammar(REQUEST) == ""
    assert answer_grammar(with_tools()) == ""
    assert answer_grammar(with_tools(tool_choice=ToolChoice.NONE)) == ""


def test_a_json_object_is_any_object_and_nothing_else() -> None:
    request = replace(REQUEST, response_schema=ANY_OBJECT)
    for text in ("{}", '{"a": [1, {"b": null}], "é": "x"}', '{\n  "a": 1\n}'):
        assert fits(request, text)
    for text in ("[]", "1", "{} ", " {}", '{"a"}', "```json\n{}\n```", ""):
        assert not fits(request, text)


def test_white_space_is_a_blank_or_a_line_break_and_has_an_end() -> None:
    request = replace(REQUEST, response_schema=ANY_OBJECT)
    assert fits(request, '{ "a" : 1,\n\t"b": 2 }')
    for text in ('{  "a": 1}', '{\n\n"a": 1}', "{" + "\n" + 41 * " " + "}"):
        assert not fits(request, text)


def test_a_schema_is_followed() -> None:
    request = replace(REQUEST, response_schema=WEATHER.parameters)
    for city, days in (("Paris", 3), ("Oslo", 3), ("Rome", "many")):
        answer = {"city": city, "days": days}
        try:
            jsonschema.validate(answer, json.loads(WEATHER.parameters))
        except jsonschema.ValidationError:
            assert not fits(request, json.dumps(answer))
        else:
            assert fits(request, json.dumps(answer))


@pytest.mark.parametrize(
    ("schema", "cause"),
    [
        ('{"type": "nonsense"}', "Invalid type: nonsense"),
        ('{"type": "string", "pattern": "("}', "unclosed group"),
        ('{"type": "string", "pattern": "(?=a)"}', "look-around"),
        ('{"properties": {"a": {"type": "nonsense"}}}', "Invalid type: nonsense"),
        ('{"type": "array", "uniqueItems": true}', 'Unimplemented keys: ["uniqueItems"]'),
        ('{"type": "string", "format": "nonsense"}', "Unknown format: nonsense"),
        ('{"$ref": "#/$defs/none"}', "does not exist"),
        ('{"$ref": "https://example.com/schema"}', "not fetch"),
        ('{"$ref": "#"}', "nothing that meets it"),
        ('{"enum": []}', "Unsatisfiable schema"),
        (json.dumps({"enum": ["x" * 70_000, "y" * 70_000]}), "expected up to 131072"),
        ("[]", "expected a JSON schema, an object"),
        ("{", "is not JSON"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_and_its_field_named(
    schema: str, cause: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        answer_grammar(replace(REQUEST, response_schema=schema))
    assert cause in caught.value.message
    assert caught.value.field == "response_format.json_schema"
    assert "\n" not in caught.value.message and len(caught.value.message) < 250
    broken = replace(TIME, parameters=schema)
    with pytest.raises(InvalidRequest) as caught:
        answer_grammar(with_tools(WEATHER, broken, tool_choice=ToolChoice.REQUIRED))
    assert (caught.value.field or "").startswith("tools[1].function.parameters")


def test_a_required_call_is_a_call_of_one_of_the_tools_and_right() -> None:
    request = with_tools(tool_choice=ToolChoice.REQUIRED)
    for text in (PARIS, NOW, f"{PARIS}\n{NOW}\n{PARIS}", call("time", '{"zone": "UTC", "x": 1}')):
        assert fits(request, text)
    for text in ("", "Hello", call("sum", "{}"), call("weather", '{"city": "Oslo"}'), NOW + " "):
        assert not fits(request, text)


def test_one_call_is_one_where_calls_are_not_parallel_or_one_tool_is_named() -> None:
    single = with_tools(tool_choice=ToolChoice.REQUIRED, parallel_tool_calls=False)
    assert fits(single, PARIS) and not fits(single, f"{PARIS}\n{NOW}")
    named = with_tools(tool_choice=ToolChoice.REQUIRED, tool_name="time")
    assert fits(named, NOW) and not fits(named, PARIS) and not fits(named, f"{NOW}\n{NOW}")


def test_a_strict_tool_is_called_right_in_any_text() -> None:
    request = with_tools(replace(WEATHER, is_strict=True), TIME)
    for text in ("Hello", "a <tool", f"Let me see.\n{PARIS}\nand {NOW} so", PARIS, ""):
        assert fits(request, text)
    for text in (call("weather", '{"city": "Oslo"}'), "<tool_call>", f"{PARIS}<tool_call> no"):
        assert not fits(request, text)


def test_without_parallel_calls_a_text_ends_with_its_first_call() -> None:
    request = with_tools(parallel_tool_calls=False)
    assert fits(request, "Hello") and fits(request, f"See: {PARIS}")
    assert not fits(request, f"{PARIS}\n{NOW}") and not fits(request, f"{PARIS} so")


def test_beside_a_response_format_the_answer_has_the_format_or_calls() -> None:
    request = with_tools(response_schema=ANY_OBJECT)
    assert fits(request, '{"a": 1}') and fits(request, f"{PARIS}\n{NOW}")
    assert not fits(request, "Hello") and not fits(request, '{"a": 1}' + PARIS)
    required = replace(request, tool_choice=ToolChoice.REQUIRED)
    assert fits(required, PARIS) and not fits(required, '{"a": 1}')
    unwanted = replace(request, tool_choice=ToolChoice.NONE)
    assert fits(unwanted, '{"a": 1}') and not fits(unwanted, PARIS)


def test_what_need_not_be_exact_may_use_more_of_json_schema_but_no_nonsense() -> None:
    loose = replace(TIME, parameters='{"properties": {"a": {"not": {"const": 1}}}}')
    assert answer_grammar(with_tools(loose)) == ""
    assert fits(with_tools(loose, parallel_tool_calls=False), call("time", '{"a": 2}'))
    for changes in (
        {"tool_choice": ToolChoice.REQUIRED},
        {"tools": (replace(loose, is_strict=True),)},
    ):
        with pytest.raises(InvalidRequest, match="Unimplemented keys"):
            answer_grammar(replace(with_tools(loose), **changes))
    with pytest.raises(InvalidRequest, match="Invalid type: nonsense"):
        answer_grammar(
            with_tools(replace(TIME, parameters='{"properties": {"a": {"type": "nonsense"}}}'))
        )


def test_a_required_call_without_tools_says_that_they_are_wanted() -> None:
    with pytest.raises(InvalidRequest, match="is 'required'; expected tools beside it"):
        answer_grammar(replace(REQUEST, tool_choice=ToolChoice.REQUIRED))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tools": (replace(TIME, name="a b"),)}, "tools[0].function.name"),
        ({"tools": (TIME, TIME)}, "tools[1].function.name"),
        ({"tools": (TIME,) * 129}, "tools"),
        ({"tools": (replace(TIME, parameters='{"type": "string"}'),)},
         "tools[0].function.parameters.type"),
        ({"tool_choice": ToolChoice.REQUIRED}, "tool_choice"),
        ({"tools": (TIME,), "tool_choice": ToolChoice.REQUIRED, "tool_name": "x"}, "tool_choice"),
        ({"response_schema": ANY_OBJECT, "ignore_eos": True}, "ignore_eos"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        answer_grammar(replace(REQUEST, **changes))
    assert caught.value.field == field
