"""What passes and proposals cost, for one target and draft: measured at start, corrected since.

Knows no network; times are seconds.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence as Items
from statistics import median

from paceline.rounds import PassCost, RoundTiming


class CostModel:
    """Time of a pass by its width, and of a proposal by its length, for one target and draft."""

    def __init__(self, pass_costs: Items[PassCost]) -> None:
        table: dict[int, dict[int, float]] = {}
        for cost in sorted(pass_costs, key=lambda cost: cost.rows):
            table.setdefault(cost.context, {})[cost.rows] = cost.milliseconds / 1000
        # A worker that ran out of time has measured its last context at a few widths only.
        num_widths = max(map(len, table.values()), default=0)
        self._table_s = {
            context: by_rows for context, by_rows in table.items() if len(by_rows) == num_widths
        }
        self._scale = 1.0
        self._step_s: deque[float] = deque(maxlen=64)
        self._way_s: deque[float] = deque(maxlen=64)

    def pass_s(self, num_rows: int, context: int) -> float:
        """Expected time of a pass."""
        if not self._table_s:
            return self._scale * 0.001
        by_rows = self._table_s[min(self._table_s, key=lambda c: abs(c - context))]
        rows = list(by_rows)
        upper = min(max(bisect_left(rows, num_rows), 1), len(rows) - 1)
        if len(rows) == 1:
            return self._scale * by_rows[rows[0]]
        low, high = rows[upper - 1], rows[upper]
        low_s, high_s = by_rows[low], by_rows[high]
        share = (num_rows - low) / (high - low)
        return self._scale * max(low_s + share * (high_s - low_s), min(low_s, high_s))

    def propose_s(self, num_drafts: int) -> float:
        """Expected time of a proposal, the way there and back included; 0 before the first."""
        if not num_drafts or not self._way_s:
            return 0.0
        return median(self._way_s) + self.step_s * num_drafts

    @property
    def step_s(self) -> float:
        """Expected time of a draft more, where one is proposed anyway; 0 before the first."""
        return median(self._step_s) if self._step_s else 0.0

    def record_pass(self, num_rows: int, context: int, elapsed_s: float) -> None:
        """Correct the table by what a pass really took."""
        expected = self.pass_s(num_rows, context) / self._scale
        if expected > 0 and elapsed_s > 0:
            # A prefill, or a moment's trouble, must not distort what the next rounds expect.
            scale = min(max(elapsed_s / expected, self._scale / 2), self._scale * 2)
            self._scale += 0.05 * (scale - self._scale)

    def record_propose(self, num_drafts: int, elapsed_s: float, timing: RoundTiming) -> None:
        """Remember what a proposal took: in all, and by its `timing` in the draft itself."""
        compute_s, num_steps = min(timing.compute_us / 1e6, elapsed_s), timing.num_steps
        if not num_steps:  # a draft that does not say, or did not answer: all of it was drafting
            compute_s, num_steps = elapsed_s, num_drafts
        if num_steps:
            self._step_s.append(compute_s / num_steps)
            self._way_s.append(max(elapsed_s - compute_s, 0.0))
