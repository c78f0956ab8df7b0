"""Bytes between coordinator and workers, as the difference of two looks at `/status`.

They are the serialised messages of rounds in both directions, features included; what gRPC and TCP
put around them is not counted. Whatever else the service does in between is counted too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes so far, or in a while."""

    draft_sent: int = 0
    draft_received: int = 0
    target_sent: int = 0
    target_received: int = 0

    @property
    def draft(self) -> int:
        """Both directions."""
        return self.draft_sent + self.draft_received

    @property
    def target(self) -> int:
        """Both directions."""
        return self.target_sent + self.target_received

    def __add__(self, other: Self) -> "Traffic":
        return self._with(other, 1)

    def __sub__(self, other: Self) -> "Traffic":
        return self._with(other, -1)

    def _with(self, other: Self, sign: int) -> "Traffic":
        return Traffic(
            self.draft_sent + sign * other.draft_sent,
            self.draft_received + sign * other.draft_received,
            self.target_sent + sign * other.target_sent,
            self.target_received + sign * other.target_received,
        )


def read_traffic(status: Mapping[str, Any]) -> Traffic:
    """All traffic since the coordinator started."""
    totals = {
        f"{role}_{way}": sum(
            worker[f"{way}_bytes"] for worker in status["workers"] if worker["role"] == role
        )
        for role in ("draft", "target")
        for way in ("sent", "received")
    }
    return Traffic(**totals)
