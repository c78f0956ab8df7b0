"""Which targets are the newer ones while a service is rolled out.

Targets of equal numerics are one kind, however they came to be. A kind is as new as the newest
software version in it; of equal versions, as the start of its longest-running target, so that one
that is restarted stays among its own. Both are what the targets say of themselves, so that every
coordinator, and one that was restarted, comes to the same. A target that does not say when it
started is of an older protocol, and counts as old.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from paceline.rounds import WorkerInfo


class Age(NamedTuple):
    """How new targets are; the greater the newer."""

    version: tuple[int, ...] = ()
    started_at_ms: int = 0


def ages(targets: Iterable[WorkerInfo]) -> dict[str, Age]:
    """The age of each digest of numerics."""
    found: dict[str, Age] = {}
    for info in targets:
        age = Age(_numbers(info.version), info.started_at_ms)
        other = found.get(info.numerics, age)
        found[info.numerics] = Age(
            max(age.version, other.version), min(age.started_at_ms, other.started_at_ms)
        )
    return found


def _numbers(version: str) -> tuple[int, ...]:
    """The release `1.2.0` as numbers that compare; what follows, as in `1.2.0rc1`, is left out."""
    release = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    numbers = [int(part) for part in release[0].split(".")] if release else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
