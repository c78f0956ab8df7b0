"""Texts and conversations into token ids and back, by the files that a target sends.

Uses the `tokenizers` library on `tokenizer.json` directly: `transformers` would give the same ids
(a test compares them) but imports torch wherever torch is installed. Calls block for as long as
the text is long; the event loop hands them to a thread. Safe to use from several threads.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers.processors import TemplateProcessing

from coordinator.chat_template import ChatTemplate
from coordinator.requests import ChatMessage
from coordinator.tools import Tool
from paceline.errors import InvalidConfig, InvalidRequest, shown
from paceline.token_bytes import read_token_bytes

ROLES = ("system", "user", "assistant", "tool")

NO_LIMIT = sys.maxsize

_FOR_ALL, _FOR_TOOLS = "default", "tool_use"
"""Names of chat templates: the second one is for conversations in which tools are offered, if it is
there (the convention of transformers)."""


class Tokenizer:
    """The tokenizer, chat template and end-of-sequence tokens of one model."""

    vocab_size: int
    """One more than the highest id."""
    eos_token_ids: tuple[int, ...]
    """The tokens that end an answer: the generation config's and the tokenizer's, ascending."""

    def __init__(self, files: Iterable[tuple[str, bytes]]) -> None:
        """`files`: name and content of each; `tokenizer.json` is needed, the others may be missing.

        Raises:
            InvalidConfig: a file is missing, broken or of a kind that is not supported.
        """
        contents = dict(files)
        config = _parsed(contents, "special_tokens_map.json") | _parsed(
            contents, "tokenizer_config.json"
        )
        self._special_tokens = _special_tokens(config)
        self._backend = _backend(contents, config, self._special_tokens)
        self._bytes = read_token_bytes(contents["tokenizer.json"], self._backend)
        self._longest = max(map(len, self._backend.get_vocab(with_added_tokens=True)))
        self.vocab_size = len(self._bytes)
        self.eos_token_ids = self._eos_token_ids(_parsed(contents, "generation_config.json"))
        self._chat_templates = {
            name: ChatTemplate(source, self._special_tokens)
            for name, source in _chat_template_sources(contents, config).items()
            if name in (_FOR_ALL, _FOR_TOOLS)
        }

    def encode(self, text: str, max_tokens: int = NO_LIMIT) -> tuple[int, ...]:
        """The ids of a text as it is, with the tokens that the model expects around any text.

        Raises:
            InvalidRequest: the text is not valid Unicode, or longer than `max_tokens` can say.
        """
        return self._encode(text, "prompt", max_tokens, add_special_tokens=True)

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        max_tokens: int = NO_LIMIT,
        tools: Sequence[Tool] = (),
    ) -> tuple[int, ...]:
        """The ids of a conversation in which tools are offered, up to where the answer begins.

        Raises:
            InvalidRequest: there is no chat template, the conversation does not fit it, or is
                longer than `max_tokens` can say.
        """
        template = self._chat_templates.get(_FOR_ALL)
        if tools:
            template = self._chat_templates.get(_FOR_TOOLS, template)
        if template is None:
            raise InvalidRequest(
                "messages cannot be used: the model has no chat template; use a prompt", "messages"
            )
        if not messages:
            raise InvalidRequest("messages is empty; expected at least one", "messages")
        for index, message in enumerate(messages):
            if message.role not in ROLES:
                raise InvalidRequest(
                    f"messages[{index}].role is {shown(message.role)}; expected one of "
                    f"{', '.join(ROLES)}",
                    f"messages[{index}].role",
                )
        # The template writes the special tokens itself.
        rendered = template.render(messages, tools)
        return self._encode(rendered, "messages", max_tokens, add_special_tokens=False)

    def encode_prediction(self, text: str, max_tokens: int = NO_LIMIT) -> tuple[int, ...]:
        """The ids that an answer with this text would most likely have.

        Raises:
            InvalidRequest: the text is not valid Unicode, or longer than `max_tokens` can say.
        """
        return self._encode(text, "prediction", max_tokens, add_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text; nothing when it is special or out of range."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def special_name(self, token_id: int) -> str:
        """How a token that adds nothing to a text is written; `<id>` where it has no name."""
        return self._backend.id_to_token(token_id) or f"<{token_id}>"

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of tokens that follow a prompt, special tokens left out."""
        return b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")

    def _encode(
        self, text: str, field: str, max_tokens: int, add_special_tokens: bool
    ) -> tuple[int, ...]:
        # Without this, megabytes would be read for seconds only to be refused.
        if len(text) > max_tokens * self._longest:
            raise InvalidRequest(
                f"{field}: has {len(text)} characters, which no {max_tokens} tokens can say; this "
                f"model takes prompt and answer of up to {max_tokens} tokens together",
                field,
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"{field} holds half a surrogate pair, {text[error.start]!r}, at character "
                f"{error.start}; expected valid Unicode",
                field,
            ) from None
        # Unlike `encode`, it lets other threads run, the event loop's among them.
        (found,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return tuple(found.ids)

    def _eos_token_ids(self, generation_config: Mapping[str, Any]) -> tuple[int, ...]:
        configured = generation_config.get("eos_token_id")
        token_ids = set(configured if isinstance(configured, list) else [configured])
        token_ids.add(self._backend.token_to_id(self._special_tokens.get("eos_token", "")))
        return tuple(sorted(token_ids - {None}))


def check_token_ids(field: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Refuse ids that a model with `vocab_size` tokens does not have.

    Raises:
        InvalidRequest: names the field, the index and the id.
    """
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"{field}[{index}] is {token_id}; expected a token id from 0 to {vocab_size - 1}",
                field,
            )


def _backend(
    contents: Mapping[str, bytes], config: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> tokenizers.Tokenizer:
    if "tokenizer.json" not in contents:
        raise InvalidConfig("tokenizer.json is missing from the files of the target's tokenizer")
    try:
        backend = tokenizers.Tokenizer.from_buffer(contents["tokenizer.json"])
    except ValueError as error:
        raise InvalidConfig(f"tokenizer.json cannot be read: {error}") from None
    # Both are meant for training; a prompt is never cut or filled up in silence.
    backend.no_truncation()
    backend.no_padding()
    if "add_bos_token" in config or "add_eos_token" in config:
        # As in transformers, these settings take the place of what tokenizer.json says.
        wanted = {
            name: special_tokens[name]
            for name in ("bos_token", "eos_token")
            if config.get(f"add_{name}") and name in special_tokens
        }
        backend.post_processor = TemplateProcessing(
            single=[*_piece(wanted, "bos_token"), "$A", *_piece(wanted, "eos_token")],
            special_tokens=[(token, backend.token_to_id(token)) for token in wanted.values()],
        )
    return backend


def _piece(tokens: Mapping[str, str], name: str) -> list[str]:
    return [tokens[name]] if name in tokens else []


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and the like, each of which is written as a text or as an object."""
    tokens = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in config.items()
        if name.endswith("_token")
    }
    return {name: token for name, token in tokens.items() if isinstance(token, str)}


def _chat_template_sources(
    contents: Mapping[str, bytes], config: Mapping[str, Any]
) -> dict[str, str]:
    """Chat templates by name."""
    if "chat_template.jinja" in contents:
        return {_FOR_ALL: contents["chat_template.jinja"].decode()}
    match config.get("chat_template"):
        case str(source):
            return {_FOR_ALL: source}
        case [*templates]:
            return {template["name"]: template["template"] for template in templates}
        case _:
            return {}


def _parsed(contents: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """A JSON file as a mapping; empty when it is missing."""
    try:
        parsed = json.loads(contents.get(name, b"{}"))
    except ValueError as error:
        raise InvalidConfig(f"{name} is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise InvalidConfig(f"{name} holds {type(parsed).__name__}; expected an object")
    return parsed
