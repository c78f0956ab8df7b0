"""Reads `values.yaml` with its comments, which say what each key means.

Knows YAML only as far as that file is written: block style, two blanks a level, the comment above
its key. A key without a comment of its own is no key of the chart: it is part of the value of the
key above it, or it sets one that is described elsewhere.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).parent / "values.yaml"
KEY = re.compile(r"^( *)([A-Za-z0-9_.-]+):( |$)")


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the chart."""

    path: tuple[str, ...]
    description: str
    default: Any


def described_keys() -> list[Key]:
    """All keys with a comment, in the order of the file."""
    text = FILE.read_text()
    values = yaml.safe_load(text)
    keys: list[Key] = []
    path: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            comment.append(line.strip().removeprefix("#").strip())
        elif found := KEY.match(line):
            path = [*path[: len(found[1]) // 2], found[2]]
            if comment:
                keys.append(Key(tuple(path), " ".join(comment), _at(values, path)))
            comment = []
        else:
            comment = []
    return keys


def _at(values: Any, path: list[str]) -> Any:
    for name in path:
        values = values[name]
    return values
