"""The rows that a sequence gets from a pass, on the device still, and the tokens chosen there.

A row crosses to the host only when somebody looks at it, and is counted then. Whoever brought
settings along (`PassSequence.settings`) mostly finds that the token is chosen; where it is not, the
settings change the logits of that place, or the row holds no finite highest logit, and to look at
it says so. Imports no torch, since a worker of the table model has none of it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from paceline.engine.logits_processing import Logits, changes_nothing
from paceline.rounds import SequenceSettings

if TYPE_CHECKING:
    from torch import Tensor


class ChosenToken(NamedTuple):
    """What a row says by the settings of its sequence."""

    token_id: int
    """As `paceline.engine.sampling.choose_token` chooses."""
    confidence: float
    """As `paceline.engine.sampling.confidence` says; 0 where it was not wanted."""


class DeviceRows:
    """Rows [N, V] of one sequence; to be read before the next pass."""

    def __init__(
        self,
        logits: "Tensor",  # [N, V], of any floating-point type
        chosen: Sequence[ChosenToken | None],  # [N]
    ) -> None:
        self._logits = logits
        self._chosen = chosen
        self.num_copied = 0
        """Rows that somebody has looked at."""

    def __len__(self) -> int:
        return len(self._chosen)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and tokens."""
        return len(self), self._logits.shape[1]

    def __getitem__(self, index: int | slice) -> Logits:
        """One row [V] or some [n, V], copied to the host."""
        rows = self._logits[index]
        self.num_copied += len(rows) if isinstance(index, slice) else 1
        copied: Logits = rows.float().cpu().numpy()
        return copied

    def chosen(self, index: int) -> ChosenToken | None:
        """What a row says; None: look at it."""
        return self._chosen[index]


def chosen_token(rows: Logits | DeviceRows, index: int) -> ChosenToken | None:
    """What a row says, where that is known without a look at it."""
    return rows.chosen(index) if isinstance(rows, DeviceRows) else None


def host_rows(rows: Logits | DeviceRows) -> Logits:
    """All rows, on the host."""
    return rows[:] if isinstance(rows, DeviceRows) else rows


def choosable(settings: SequenceSettings) -> SequenceSettings | None:
    """The settings where a row alone says the token by them, in most places; else None."""
    changes_later = not changes_nothing(settings, position=settings.max_length)
    if settings.samples_drafts or settings.grammar or changes_later:
        return None
    return settings
