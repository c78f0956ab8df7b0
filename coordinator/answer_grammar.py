"""What the answer to a request must look like, as a grammar for the workers.

`response_format` and tools become one Lark grammar, as llguidance reads it (see `SequenceSettings`
in tokens.proto); "" when any text will do. It is compiled here once, to find what is wrong with a
schema before a worker sees it and to name the field. Calls block; the event loop hands them to a
thread. Knows nothing about tokens.

Between the parts of a JSON value there is nothing, one blank, or a line break with indentation:
without a limit, small models fill their answers with white space.
"""

import json
import re
from functools import cache
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from coordinator.requests import GenerationRequest
from coordinator.tool_format import CALL_BEGIN, CALL_END
from coordinator.tools import MAX_TOOLS, NAME, Tool, ToolChoice
from paceline.errors import InvalidRequest

ANY_OBJECT = '{"type": "object"}'
"""The schema of `json_object`."""

MAX_GRAMMAR = 128 * 1024
"""Characters. It goes to workers in one message with the rounds of other sequences."""

_WHITE_SPACE = r" |\n[ \t]{0,40}"
_ANY_TEXT = r"/(.|\n)*/"
_CAUSE = re.compile(
    r"(?:at \d+\(\d+\): )?(?:failed to compile JSON schema: )?(.+?)(?:\n +\d+ \||$)", re.S
)


def answer_grammar(request: GenerationRequest) -> str:
    """The grammar of a request's answer.

    Raises:
        InvalidRequest: a schema is wrong or not supported, nothing meets it, or the request wants
            what contradicts it; names the field.
    """
    _check_tools(request)
    grammar = ""
    if request.response_schema:
        field = "response_format.json_schema"
        _parsed(request.response_schema, field)
        grammar = f"start: {_json_rule(request.response_schema)}\n"
        _check(grammar, field)
    if request.offered_tools and _must_follow_tools(request):
        grammar = _with_tools(request)
        _check(grammar, "tools")
    if grammar and request.ignore_eos:
        raise InvalidRequest(
            "ignore_eos: is true, but the answer must end where its response_format or its tools "
            "say; expected false",
            "ignore_eos",
        )
    return grammar


def _check_tools(request: GenerationRequest) -> None:
    names = [tool.name for tool in request.tools]
    if len(names) > MAX_TOOLS:
        raise InvalidRequest(f"tools: are {len(names)}; expected up to {MAX_TOOLS}", "tools")
    for index, tool in enumerate(request.tools):
        field = f"tools[{index}].function"
        if not re.fullmatch(NAME, tool.name) or names.index(tool.name) < index:
            raise InvalidRequest(
                f"{field}.name: is {tool.name!r}; expected 1 to 64 letters, digits, - and _ and no "
                "other tool with that name",
                f"{field}.name",
            )
        field += ".parameters"
        kind = _parsed(tool.parameters, field).get("type", "object")
        if kind != "object":
            raise InvalidRequest(f"{field}.type: is {kind!r}; expected 'object'", f"{field}.type")
        _check(f"start: {_arguments_rule(tool, request)}\n", field)
    if request.tool_choice is not ToolChoice.REQUIRED:
        return
    if request.tool_name not in ("", *names) or not names:
        expected = f"the name of one of the {len(names)} tools" if names else "tools beside it"
        raise InvalidRequest(
            f"tool_choice: is {request.tool_name or 'required'!r}; expected {expected}",
            "tool_choice",
        )


def _must_follow_tools(request: GenerationRequest) -> bool:
    """Whether a call must be right, which is more than being asked for.

    So it is beside a response format, which must not forbid it, and where there may be only one.
    """
    return (
        request.tool_choice is ToolChoice.REQUIRED
        or bool(request.response_schema)
        or not request.parallel_tool_calls
        or any(tool.is_strict for tool in request.tools)
    )


def _with_tools(request: GenerationRequest) -> str:
    is_one = not request.parallel_tool_calls or bool(request.tool_name)
    begin = json.dumps(CALL_BEGIN)
    if request.tool_choice is ToolChoice.AUTO and not request.response_schema:
        # What begins like a call in any text goes on as one.
        start = "TEXT | begin inside" if is_one else "(begin inside)* TEXT"
        rules = f"start: {start}\nTEXT: {_ANY_TEXT}\nbegin[lazy]: TEXT {begin}\n"
    else:
        calls = "call" if is_one else r'call ("\n" call)*'
        if request.tool_choice is ToolChoice.AUTO:
            calls += f" | {_json_rule(request.response_schema)}"
        rules = f"start: {calls}\ncall: {begin} inside\n"
    return rules + _inside_rules(request)


def _inside_rules(request: GenerationRequest) -> str:
    """What a call is behind its mark."""
    rules = {}
    for index, tool in enumerate(request.tools):
        if request.tool_name in ("", tool.name):
            head = f'\n{{"name": {json.dumps(tool.name)}, "arguments": '
            rules[f"tool_{index}"] = f"{json.dumps(head)} {_arguments_rule(tool, request)}"
    rules["inside"] = f"({' | '.join(rules)}) {json.dumps(f'}}{chr(10)}{CALL_END}')}"
    return "".join(f"{name}: {rule}\n" for name, rule in rules.items())


def _arguments_rule(tool: Tool, request: GenerationRequest) -> str:
    is_exact = tool.is_strict or request.tool_choice is ToolChoice.REQUIRED
    schema = {"type": "object", **json.loads(tool.parameters)}
    return _json_rule(json.dumps(schema), is_exact)


def _json_rule(schema: str, is_exact: bool = True) -> str:
    """JSON that meets the schema; where that need not be exact, as far as it can be followed."""
    options = {
        "whitespace_pattern": _WHITE_SPACE,
        "lenient": not is_exact,
        "coerce_one_of": not is_exact,
    }
    return "%json " + json.dumps({**json.loads(schema), "x-guidance": options})


def _parsed(schema: str, field: str) -> dict[str, Any]:
    try:
        parsed = json.loads(schema)
    except ValueError as error:
        raise InvalidRequest(f"{field}: is not JSON: {error}", field) from None
    if not isinstance(parsed, dict):
        raise InvalidRequest(f"{field}: is {schema[:40]}; expected a JSON schema, an object", field)
    return parsed


def _check(grammar: str, field: str) -> None:
    if len(grammar) > MAX_GRAMMAR:
        raise InvalidRequest(
            f"{field}: makes a grammar of {len(grammar)} characters; expected up to {MAX_GRAMMAR}",
            field,
        )
    matcher = LLMatcher(_bytes(), grammar, log_level=0)
    if matcher.is_error():
        found = _CAUSE.match(matcher.get_error())
        cause = " ".join((found[1] if found else matcher.get_error()).split())
        raise InvalidRequest(f"{field}: cannot be used: {cause}", field)
    matcher.compute_bitmask()
    if matcher.is_error():
        raise InvalidRequest(f"{field}: cannot be used: there is nothing that meets it", field)


@cache
def _bytes() -> LLTokenizer:
    """Tokens that are bytes: what can be written at all can be written with them."""
    return LLTokenizer("byte")
