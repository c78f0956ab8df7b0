"""One tokenizer as what its tokens write, and how it splits a piece of text that goes on.

A token writes bytes (`paceline.token_bytes`) or is special and writes none. Texts are bytes here,
since a target's token may be a part of a character; what is no UTF-8 is spelled byte by byte.
"""

import json
from collections.abc import Iterator, Sequence

import tokenizers

from paceline.engine.tokenizer_files import CONFIG_FILE, TOKENIZER_FILE, TokenizerFile
from paceline.errors import InvalidConfig
from paceline.token_bytes import read_token_bytes

_PROBE = "The café's 12 cats: “x = f(y)”,\n\n  日本 🙂."
"""A text that a tokenizer must not change; composed characters, as most texts have them."""
_GUARD = "\n"
"""Put before a text that goes on, where the tokenizer would begin it with a blank."""


class Vocabulary:
    """The tokens of one tokenizer. Calls block for as long as the text is long."""

    def __init__(self, name: str, files: Sequence[TokenizerFile]) -> None:
        """`name` says in errors whose it is. Raises `InvalidConfig` for one that changes texts."""
        contents = {file.name: file.content for file in files}
        self._backend = tokenizers.Tokenizer.from_buffer(contents[TOKENIZER_FILE])
        self._backend.no_truncation()
        self._backend.no_padding()
        self.token_bytes = read_token_bytes(contents[TOKENIZER_FILE], self._backend)
        """By id; nothing for special tokens and ids that are not in use."""
        self.special = {
            token_id: token
            for token, token_id in self._backend.get_vocab(with_added_tokens=True).items()
            if not self.token_bytes[token_id]
        }
        """How the tokens are written that add nothing to a text."""
        self.ids = self._ids()
        """By the bytes that a token writes."""
        self.roles = _roles(contents, {token: id for id, token in self.special.items()})
        """`bos_token` and `eos_token` where the tokenizer has them."""
        prefix = self._backend.encode("", add_special_tokens=True).ids
        self.prefix = [token_id for token_id in prefix if token_id in self.special]
        """What the model expects before any text."""
        if self.written(self.encode(_PROBE.encode())) != _PROBE.encode():
            raise InvalidConfig(
                f"the tokenizer of {name} changes the text that it reads; expected one whose "
                "tokens write the text as it is"
            )

    def __len__(self) -> int:
        return len(self.token_bytes)

    def written(self, token_ids: Sequence[int]) -> bytes:
        """What tokens write together."""
        return b"".join(self.token_bytes[token_id] for token_id in token_ids)

    def encode(self, text: bytes) -> list[int]:
        """The tokens of a text that goes on behind others; a byte that it has no token for is left
        out."""
        token_ids: list[int] = []
        for piece in _pieces(text):
            if isinstance(piece, str):
                token_ids += self._encode_text(piece)
            else:
                token_ids += [self.ids[byte] for byte in _single(piece) if byte in self.ids]
        return token_ids

    def _encode_text(self, text: str) -> list[int]:
        wanted = text.encode()
        plain = self._split(text)
        if self.written(plain) == wanted:
            return plain
        # The tokenizer begins each text with a blank of its own.
        if text.startswith(" ") and self.written(found := self._split(text[1:])) == wanted:
            return found
        guarded = self._split(_GUARD + text)
        for start in range(1, len(guarded)):
            if self.written(guarded[start:]) == wanted:
                return guarded[start:]
        return plain

    def _split(self, text: str) -> list[int]:
        found: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return found

    def _ids(self) -> dict[bytes, int]:
        """Of several tokens with the same bytes the one that is not there for single bytes."""
        found: dict[bytes, int] = {}
        for token_id, written in enumerate(self.token_bytes):
            if written and (written not in found or self._is_fallback(found[written])):
                found[written] = token_id
        return found

    def _is_fallback(self, token_id: int) -> bool:
        return (self._backend.id_to_token(token_id) or "").startswith("<0x")


def _roles(contents: dict[str, bytes], special: dict[str, int]) -> dict[str, int]:
    config = json.loads(contents.get(CONFIG_FILE, b"{}"))
    roles: dict[str, int] = {}
    for name in ("bos_token", "eos_token"):
        token = config.get(name)
        content = token["content"] if isinstance(token, dict) else token
        if content in special:
            roles[name] = special[content]
    return roles


def _pieces(text: bytes) -> Iterator[str | bytes]:
    """Runs of whole characters as text, and what is between them as bytes."""
    while text:
        try:
            yield text.decode()
            return
        except UnicodeDecodeError as error:
            if error.start:
                yield text[: error.start].decode()
            yield text[error.start : error.end]
            text = text[error.end :]


def _single(text: bytes) -> Iterator[bytes]:
    for byte in text:
        yield bytes([byte])
