"""Typed values out of the `config.json` of a head, of whatever method.

Knows nothing about what the settings mean. Imports no torch.

Invariant: a value that a method cannot follow is refused by key, value and what was expected.
"""

import json
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from paceline.errors import InvalidConfig, shown

CONFIG_FILE = "config.json"

_WITHOUT_EFFECT = frozenset(
    {"_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version"}
    | {"attention_dropout", "initializer_range", "max_position_embeddings", "max_window_layers"}
    | {"bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "tie_word_embeddings"}
    | {"return_dict", "chunk_size_feed_forward", "id2label", "label2id"}
    | {"embed_requires_grad", "enable_sp_ulysses", "speculators_version", "speculators_config"}
)
"""They are about training, saving, other classes, or the text, which the target ends."""


def read_config_file(head: str) -> dict[str, Any]:
    """What the config of the head in the directory `head` says; raises `InvalidConfig`."""
    path = Path(head).expanduser() / CONFIG_FILE
    try:
        table = json.loads(path.read_text())
    except OSError as error:
        raise InvalidConfig(
            f"head {head!r}: its {CONFIG_FILE} cannot be read ({error.strerror}); expected the "
            "directory of a head"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"head {head!r}: its {CONFIG_FILE} is not JSON: {error}") from None
    if not isinstance(table, dict):
        raise InvalidConfig(f"head {head!r}: its {CONFIG_FILE} holds no object")
    return table


class ConfigReader:
    """Typed values out of one object of a config; refuses the others by name."""

    def __init__(self, head: str, table: Any, path: str = "") -> None:
        self._head = head
        self._table: Mapping[str, Any] = table if isinstance(table, dict) else {}
        self._path = path

    def get(self, key: str) -> Any:
        """The value as it is; None when it is left out."""
        return self._table.get(key)

    def refused(self, key: str, value: object, expected: str) -> InvalidConfig:
        """The error for a value that cannot be followed."""
        return InvalidConfig(
            f"head {self._head!r}: {self._path}{key} in its {CONFIG_FILE} is {shown(value)}; "
            f"expected {expected}"
        )

    def check_fixed(self, fixed: Mapping[str, object]) -> None:
        """Refuse settings that are not left out and say something else."""
        for key, expected in fixed.items():
            value = self._table.get(key)
            if value is not None and value != expected:
                raise self.refused(key, value, f"{expected!r}, all that this version runs")

    def check_known(self, known: Set[str]) -> None:
        """Refuse what is neither known nor switched off."""
        for key, value in self._table.items():
            if value and key not in known | _WITHOUT_EFFECT:
                raise self.refused(key, value, "no such setting, this version cannot follow it")

    def text(self, key: str) -> str:
        """A text, which must be there."""
        value = self._table.get(key)
        if not isinstance(value, str) or not value:
            raise self.refused(key, value, "a text")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number above 0."""
        value = self._table.get(key, default)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            raise self.refused(key, value, "a whole number of at least 1")
        return value

    def number(self, key: str, default: float) -> float:
        """A number above 0."""
        value = self._table.get(key, default)
        if type(value) not in (int, float) or not 0.0 < value < float("inf"):
            raise self.refused(key, value, "a number above 0")
        return float(value)

    def flag(self, key: str) -> bool:
        """True or false; false when it is left out."""
        value = self._table.get(key)
        if value not in (None, False, True):
            raise self.refused(key, value, "true or false")
        return bool(value)
