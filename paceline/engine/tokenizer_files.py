"""The tokenizer of a target as a handful of files, for a coordinator that has no model volume.

`transformers.AutoTokenizer.from_pretrained` of a directory with just these files gives the same
tokenizer and chat template, without torch; `generation_config.json` names the tokens that end a
text. Tokenizers are told apart by what their ids mean, not by how their files are written:
`tokenizer_digest` is equal exactly when `first_vocabulary_difference` finds nothing.

Knows nothing about models and imports neither torch nor transformers.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import InvalidConfig

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
GENERATION_FILE = "generation_config.json"
_FILE_NAMES = (
    TOKENIZER_FILE,
    CONFIG_FILE,
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    GENERATION_FILE,
)


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """One file of a tokenizer: its name without a directory, and what is in it."""

    name: str
    content: bytes


def read_tokenizer_files(directory: Path) -> list[TokenizerFile]:
    """The tokenizer files of a checkpoint directory, always in the same order.

    Raises:
        InvalidConfig: there is no `tokenizer.json` or no `tokenizer_config.json`.
    """
    for name in (TOKENIZER_FILE, CONFIG_FILE):
        if not (directory / name).is_file():
            raise InvalidConfig(f"directory {str(directory)!r} has no {name}")
    paths = [directory / name for name in _FILE_NAMES]
    return [TokenizerFile(path.name, path.read_bytes()) for path in paths if path.is_file()]


def tokenizer_digest(files: Sequence[TokenizerFile]) -> str:
    """A digest of every id's token, the merges and the first and last token of a text."""
    digest = hashlib.sha256()
    for name, value in _Tokens.of(files).facts():
        digest.update(json.dumps([name, value]).encode() + b"\n")
    return digest.hexdigest()


def vocabulary_size(files: Sequence[TokenizerFile]) -> int:
    """One more than the highest id that the tokenizer knows."""
    return max(_Tokens.of(files).spellings, default=-1) + 1


def first_vocabulary_difference(
    target: Sequence[TokenizerFile], draft: Sequence[TokenizerFile]
) -> str | None:
    """A sentence about the first thing that differs between two tokenizers, or None."""
    of_target, of_draft = dict(_Tokens.of(target).facts()), dict(_Tokens.of(draft).facts())
    # The facts of both in the order of the target's, then what only the draft has.
    for name in of_target | of_draft:
        ours, others = of_target.get(name), of_draft.get(name)
        if ours != others:
            return f"{name} is {_shown(ours)} for the target and {_shown(others)} for the draft"
    return None


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)


@dataclass(frozen=True, slots=True)
class _Tokens:
    """What the ids of a tokenizer mean."""

    spellings: dict[int, str]
    merges: list[str]
    special: dict[str, str | None]

    @classmethod
    def of(cls, files: Sequence[TokenizerFile]) -> "_Tokens":
        contents = {file.name: file.content for file in files}
        tokenizer = _parsed(contents, TOKENIZER_FILE)
        config = _parsed(contents, CONFIG_FILE)
        if "vocab" not in tokenizer.get("model", {}) or "added_tokens" not in tokenizer:
            raise InvalidConfig(f"the tokenizer's {TOKENIZER_FILE} has no vocabulary")
        model, vocabulary = tokenizer["model"], tokenizer["model"]["vocab"]
        if isinstance(vocabulary, dict):
            spellings = {token_id: token for token, token_id in vocabulary.items()}
        else:
            spellings = {token_id: token for token_id, (token, _) in enumerate(vocabulary)}
        spellings |= {added["id"]: added["content"] for added in tokenizer["added_tokens"]}
        merges = [
            merge if isinstance(merge, str) else " ".join(merge)
            for merge in model.get("merges") or []
        ]
        special = {name: _content(config.get(name)) for name in ("bos_token", "eos_token")}
        return cls(spellings, merges, special)

    def facts(self) -> Iterator[tuple[str, str | None]]:
        """Name and value of everything that must be equal, the lowest ids first."""
        for token_id in sorted(self.spellings):
            yield f"token {token_id}", self.spellings[token_id]
        yield from self.special.items()
        for rank, merge in enumerate(self.merges):
            yield f"merge {rank}", merge


def _parsed(contents: dict[str, bytes], name: str) -> dict[str, Any]:
    try:
        parsed: dict[str, Any] = json.loads(contents[name])
    except KeyError:
        raise InvalidConfig(f"the tokenizer has no {name}") from None
    except ValueError as error:
        raise InvalidConfig(f"the tokenizer's {name} is not JSON: {error}") from None
    return parsed


def _content(token: str | dict[str, Any] | None) -> str | None:
    """A special token is written as its text or as an object with its text and flags."""
    return token["content"] if isinstance(token, dict) else token
