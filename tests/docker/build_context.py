"""The files that a builder is sent: those of the repository that .dockerignore lets through."""

import os
import re
from collections.abc import Iterator
from functools import cache

from image_stages import ROOT


@cache
def context_files() -> frozenset[str]:
    """Paths from the root of the repository."""
    return frozenset(_walk("", _rules((ROOT / ".dockerignore").read_text())))


def files_below(source: str) -> list[str]:
    """The file, or those of the folder, that a `COPY` names."""
    return sorted(
        path for path in context_files() if path == source or path.startswith(f"{source}/")
    )


def _walk(folder: str, rules: list[tuple[bool, str]]) -> Iterator[str]:
    for entry in os.scandir(ROOT / folder):
        path = f"{folder}/{entry.name}" if folder else entry.name
        if not entry.is_dir(follow_symlinks=False):
            if not _is_ignored(path, rules):
                yield path
        elif not _is_ignored(path, rules) or any(
            is_exception and text.startswith(f"{path}/") for is_exception, text in rules
        ):
            yield from _walk(path, rules)


def _rules(text: str) -> list[tuple[bool, str]]:
    """Whether each is an exception, and its pattern."""
    lines = [line.strip() for line in text.splitlines()]
    return [
        (line.startswith("!"), line.removeprefix("!"))
        for line in lines
        if line and not line.startswith("#")
    ]


def _is_ignored(path: str, rules: list[tuple[bool, str]]) -> bool:
    """The last rule that fits the path or a folder above it decides, as Docker has it."""
    parts = path.split("/")
    above = ["/".join(parts[: number + 1]) for number in range(len(parts))]
    is_ignored = False
    for is_exception, pattern in rules:
        if any(_expression(pattern).fullmatch(each) for each in above):
            is_ignored = not is_exception
    return is_ignored


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    text = re.escape(pattern).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
    return re.compile(text)
