"""What each token writes: the bytes it adds to a text, read from a `tokenizer.json`.

A text is the bytes of its tokens joined and read as UTF-8, each broken sequence as one U+FFFD.
For byte-level tokenizers this is what their own decoder does. For the SentencePiece kind it is
what the decoder gives for a text that goes on behind a prompt: no blank is stripped from its
start, and one broken byte does not spoil the whole characters around it. Either way a token means
the same bytes whatever stands around it, which is what lets a text grow without being read again,
and a grammar (`paceline.engine.grammar`) judge tokens by what the reader will see.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers

from paceline.errors import InvalidConfig

_SPECIAL_TEXT = ("<tool_call>", "</tool_call>")
"""Some tokenizers have these as special tokens, and yet they are for the reader of an answer."""

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def read_token_bytes(tokenizer_json: bytes, backend: tokenizers.Tokenizer) -> list[bytes]:
    """What `token_bytes` gives for a `tokenizer.json` and the tokenizer that was read from it."""
    added = backend.get_added_tokens_decoder()
    return token_bytes(
        json.loads(tokenizer_json).get("decoder"),
        backend.get_vocab(with_added_tokens=True),
        frozenset(
            token_id
            for token_id, token in added.items()
            if token.special and token.content not in _SPECIAL_TEXT
        ),
    )


def token_bytes(
    decoder: Mapping[str, Any] | None, vocabulary: Mapping[str, int], special_ids: frozenset[int]
) -> list[bytes]:
    """The bytes of every token by id; nothing for special tokens and for ids that are not in use.

    Raises:
        InvalidConfig: the decoder (that of `tokenizer.json`) gives tokens no bytes of their own.
    """
    steps = _steps(decoder)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        if token_id not in special_ids:
            table[token_id] = _apply(steps, token)
    return table


def _steps(decoder: Any) -> list[dict[str, Any]]:
    """The parts of a decoder that change a token by itself."""
    match decoder:
        case {"type": "Sequence", "decoders": [*parts]}:
            return [step for part in parts for step in _steps(part)]
        case {"type": "ByteLevel" | "ByteFallback" | "Metaspace"}:
            return [decoder]
        case {"type": "Replace", "pattern": {"String": str()}}:
            return [decoder]
        case {"type": "Fuse"} | {"type": "Strip", "content": " ", "stop": 0}:
            return []
        case _:
            raise InvalidConfig(
                f"decoder of tokenizer.json is {decoder!r}; expected ByteLevel, ByteFallback, "
                "Metaspace, or Replace with a plain text"
            )


def _apply(steps: Iterable[Mapping[str, Any]], token: str) -> bytes:
    for step in steps:
        match step["type"]:
            case "ByteLevel":
                return _byte_level(token)
            case "ByteFallback":
                if found := _BYTE_FALLBACK.fullmatch(token):
                    return bytes.fromhex(found[1])
            case "Metaspace":
                token = token.replace(step["replacement"], " ")
            case "Replace":
                token = token.replace(step["pattern"]["String"], step["content"])
    return token.encode()


def _byte_level(token: str) -> bytes:
    """A token in the byte-level alphabet; one that is not (an added token) is plain text."""
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:
        return token.encode()


def _byte_level_alphabet() -> dict[str, int]:
    """The byte that each character of the alphabet stands for (Radford et al., 2019, GPT-2).

    Bytes that are printable in Latin-1 stand for themselves; the rest follow from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


_BYTE_OF_CHARACTER = _byte_level_alphabet()
