"""A model's chat template: turns of a conversation into the text that the model was trained on.

Templates are Jinja programs that come with a checkpoint. They run in Jinja's sandbox, with the
names that templates in circulation rely on (`raise_exception`, `strftime_now`, loop controls,
`{% generation %}`; see the chat templating guide of transformers). Knows nothing about tokens.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from coordinator.requests import ChatMessage
from paceline.errors import InvalidConfig, InvalidRequest


class ChatTemplate:
    """One compiled template. Safe to use from several threads."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens`: `bos_token` and the like, as the template may print them.

        Raises:
            InvalidConfig: the template is not valid Jinja.
        """
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise InvalidConfig(
                f"chat template of the tokenizer is wrong in line {error.lineno}: {error.message}"
            ) from None
        self._special_tokens = special_tokens

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The conversation as text, up to where the next answer begins.

        Raises:
            InvalidRequest: the template refuses the conversation.
        """
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return self._template.render(
                **self._special_tokens,
                messages=turns,
                tools=None,
                documents=None,
                add_generation_prompt=True,
            )
        # A template is a program: it refuses with raise_exception, or trips over what it got.
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise InvalidRequest(
                f"messages are refused by the chat template of the model: {error}", "messages"
            ) from error


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
