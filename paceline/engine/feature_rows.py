"""The target's hidden states as a drafter holds them: a run of rows up to the newest known one.

A row belongs to all tokens up to its own, so when a span replaces tokens their rows go too. Plain
numpy: knows no model and no network.
"""

import numpy as np

from paceline.engine.model import Features as Rows
from paceline.rounds import Features


class FeatureRows:
    """The rows of one sequence, from `start` up to `end`."""

    def __init__(self, feature_size: int) -> None:
        self._size = feature_size
        self.start = 0
        self.rows: Rows = np.empty((0, feature_size), np.float16)
        """`[end - start, feature_size]`."""

    @property
    def end(self) -> int:
        """Position of the first token behind the rows."""
        return self.start + len(self.rows)

    def cut(self, num_tokens: int) -> None:
        """Forget the rows of all but the first `num_tokens` tokens of the sequence."""
        self.rows = self.rows[: max(num_tokens - self.start, 0)]

    def add(self, features: Features) -> None:
        """Take rows; newer ones win, and rows behind a gap are the only ones that stay.

        A row that holds something else than numbers is a gap. Raises ValueError for data of another
        size.
        """
        expected = features.num_rows * self._size * 2
        if len(features.data) != expected:
            raise ValueError(
                f"features.data: has {len(features.data)} bytes; expected {expected} for "
                f"{features.num_rows} rows of {self._size} numbers"
            )
        added = np.frombuffer(features.data, "<f2").reshape(features.num_rows, self._size)
        start = features.start
        unusable = np.flatnonzero(~np.isfinite(added).all(axis=1))
        if len(unusable):
            num_lost = int(unusable[-1]) + 1
            start, added = start + num_lost, added[num_lost:]
            self.cut(self.start)
        if not self.start <= start <= self.end:
            self.start, self.rows = start, added
        else:
            self.rows = np.concatenate((self.rows[: start - self.start], added))
