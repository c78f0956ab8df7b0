"""What passes and proposals cost, for one target and draft: measured at start, corrected since.

Knows no network; times are seconds.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence as Items
from statistics import median
from typing import NamedTuple

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
        self._proposals: deque[_Proposal] = deque(maxlen=64)
        self._step_s = 0.0
        self._rest_s = 0.0

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
        return self._rest_s + self._step_s * num_drafts if num_drafts else 0.0

    @property
    def step_s(self) -> float:
        """Expected time of a draft more, where one is proposed anyway; 0 before the first."""
        return self._step_s

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
        if not timing.compute_us:  # a draft that did not answer: all of it was drafting
            compute_s, num_steps = elapsed_s, num_drafts
            if not num_drafts:
                return
        self._proposals.append(_Proposal(num_steps, compute_s, elapsed_s))
        self._step_s = _step_s([p for p in self._proposals if p.num_steps])
        rest = (p.elapsed_s - self._step_s * p.num_steps for p in self._proposals)
        self._rest_s = max(median(rest), 0.0)


class _Proposal(NamedTuple):
    num_steps: int
    compute_s: float
    elapsed_s: float


def _step_s(proposals: Items[_Proposal]) -> float:
    """What a step more takes: the first one takes longer, with cold caches and more to read."""
    if not proposals:
        return 0.0
    fewest = min(p.num_steps for p in proposals)
    first_s = median(p.compute_s for p in proposals if p.num_steps == fewest)
    more = [
        (p.compute_s - first_s) / (p.num_steps - fewest) for p in proposals if p.num_steps > fewest
    ]
    return max(median(more), 0.0) if more else first_s / fewest
