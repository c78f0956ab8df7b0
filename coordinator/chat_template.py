"""A model's chat template: turns of a conversation into the text that the model was trained on.

Templates are Jinja programs that come with a checkpoint. They run in Jinja's sandbox, with the
names that templates in circulation rely on (`raise_exception`, `strftime_now`, loop controls,
`{% generation %}`; see the chat templating guide of transformers). Knows nothing about tokens.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from coordinator.requests import ChatMessage
from coordinator.tool_format import as_plain_turns, is_supported, tool_definition
from coordinator.tools import Tool
from paceline.errors import InvalidConfig, InvalidRequest


class ChatTemplate:
    """One compiled template. Safe to use from several threads."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens`: `bos_token` and the like, as the template may print them.

        Raises:
            InvalidConfig: the template is not valid Jinja.
        """
        environment = _environment()
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise InvalidConfig(
                f"chat template of the tokenizer is wrong in line {error.lineno}: {error.message}"
            ) from None
        self._special_tokens = special_tokens
        self._shows_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))
        self._is_tool_format_supported = is_supported(source)

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> str:
        """The conversation as text, up to where the next answer begins.

        Tools, calls and results are shown by the template, or as `coordinator.tool_format` has it
        when the template does not know of tools.

        Raises:
            InvalidRequest: the template refuses the conversation, or shows tools in another format.
        """
        if tools and self._shows_tools and not self._is_tool_format_supported:
            raise InvalidRequest(
                "tools: the chat template of the model asks for calls in a format that is not "
                "supported; expected <tool_call>{…}</tool_call>",
                "tools",
            )
        if not self._shows_tools:
            messages, tools = as_plain_turns(messages, tools), ()
        try:
            return self._template.render(
                **self._special_tokens,
                messages=list(map(_turn, messages)),
                tools=list(map(tool_definition, tools)) or None,
                documents=None,
                add_generation_prompt=True,
            )
        # A template is a program: it refuses with raise_exception, or trips over what it got.
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise InvalidRequest(
                f"messages are refused by the chat template of the model: {error}", "messages"
            ) from error


def _turn(message: ChatMessage) -> dict[str, Any]:
    """A turn as templates know it, by the convention of transformers."""
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        turn["tool_call_id"] = message.tool_call_id
    return turn


class _GenerationTag(Extension):
    """`{% generation %}` marks an assistant's words for training; here it just shows them."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    # Jinja's own tojson escapes for HTML.
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
