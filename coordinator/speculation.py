"""How many drafts the next round of a sequence gets, zero included.

A draft pays while it brings committed tokens faster than the target makes them anyway. So the
number is the one with the highest expected rate

    (1 + expected accepted drafts) / (time of the pass + time to propose),

where acceptance is conditional on the draft before, in a tree on the one that it follows, learned
per place from this sequence with what other sequences saw as a prior, and the time of a wider pass
comes from the target's measured cost table. Every `PROBE_EVERY` tokens a round tries one draft
more, or one when there were none and the target went on alone. Where drafting stops depends on
counts and times only, never on a token's value.

Knows no network; times are seconds.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from statistics import median

from coordinator.acceptance_rates import AcceptanceRates
from coordinator.decode_loop import Committed, RoundPlan
from coordinator.sequence import Sequence
from paceline.rounds import PassCost

PROBE_EVERY = 32
"""Tokens between two tries of a draft more than pays, so that a text that turns repetitive is
noticed."""
MAX_MISSES = 3
"""Proposals that may fail in a row before the draft is left alone for a while."""
FIRST_PAUSE_TOKENS = 32
EXACT_TIMEOUT_S = 1.0
"""Least patience with a draft whose number of tokens the request asked for."""
SHORTEST_TIMEOUT_S = 0.02
"""No proposal is given up sooner: less is within the noise of a busy machine."""
SHARED_DECAY = 0.995
DECAY = 0.9
"""What an older observation of the same sequence counts against the next newer one."""
PRIOR_WEIGHT = 2.0
"""Observations that the other sequences' experience counts for."""
FIRST_GUESS = 0.7
"""Acceptance of a drafter that nobody has seen yet: high enough to try."""


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
        self._propose_per_token_s: deque[float] = deque(maxlen=64)

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
        if not self._propose_per_token_s:
            return 0.0
        return median(self._propose_per_token_s) * num_drafts

    def record_pass(self, num_rows: int, context: int, elapsed_s: float) -> None:
        """Correct the table by what a pass really took."""
        expected = self.pass_s(num_rows, context) / self._scale
        if expected > 0 and elapsed_s > 0:
            # A prefill, or a moment's trouble, must not distort what the next rounds expect.
            scale = min(max(elapsed_s / expected, self._scale / 2), self._scale * 2)
            self._scale += 0.05 * (scale - self._scale)

    def record_propose(self, num_drafts: int, elapsed_s: float) -> None:
        """Remember what a proposal took."""
        if num_drafts:
            self._propose_per_token_s.append(elapsed_s / num_drafts)


@dataclass(slots=True)
class SharedExperience:
    """What all sequences with the same target and drafter have seen."""

    costs: CostModel
    acceptance: AcceptanceRates = field(default_factory=AcceptanceRates)

    def observe_pass(self, sequence: Sequence, committed: Committed) -> None:
        """Learn what a pass costs, unless it was a prefill."""
        timing = committed.timing
        if timing.pass_rows and sequence.num_new_tokens > len(committed.token_ids):
            self.costs.record_pass(timing.pass_rows, len(sequence.log), timing.compute_us / 1e6)

    def prior(self, place: int) -> float:
        """Chance of acceptance of the draft at a place, for a sequence that is new."""
        return self.acceptance.rate(place, FIRST_GUESS, prior_weight=4.0)


class PlainDecoding:
    """No speculation: the target goes on alone to the end."""

    def plan(self, sequence: Sequence) -> RoundPlan:
        """The next round."""
        return RoundPlan(0, sequence.num_left, 0.0)

    def observe(self, sequence: Sequence, committed: Committed) -> None:
        """Nothing to learn."""


class ExactSpeculation:
    """The number of drafts that the request asked for, in every round."""

    def __init__(self, shared: SharedExperience, num_speculative_tokens: int) -> None:
        self._shared = shared
        self._num_drafts = num_speculative_tokens
        self._patience = _Patience()

    def plan(self, sequence: Sequence) -> RoundPlan:
        """The next round."""
        if num_alone := self._patience.pause_tokens():
            return RoundPlan(0, num_alone, 0.0)
        # A draft as slow as the target, four times over, is still what was asked for.
        slowest_s = 4 * self._num_drafts * self._shared.costs.pass_s(1, len(sequence.log))
        num_alone = _tokens_without_a_draft(sequence)
        return RoundPlan(self._num_drafts, num_alone, max(EXACT_TIMEOUT_S, slowest_s))

    def observe(self, sequence: Sequence, committed: Committed) -> None:
        """Notice a draft that does not answer."""
        self._patience.observe(committed)
        self._shared.observe_pass(sequence, committed)


class AdaptiveSpeculation:
    """As many drafts as pay, up to a maximum."""

    def __init__(self, shared: SharedExperience, max_speculative_tokens: int) -> None:
        self._shared = shared
        self._max_drafts = max_speculative_tokens
        self._acceptance = AcceptanceRates()
        self._patience = _Patience()
        self._num_wanted = 0
        self._probed_at = 0
        """Tokens of the answer when a draft more than seemed to pay was tried last."""
        self._other_rows = 0.0
        self._other_tokens = 0.0
        self._mean_committed = 1.0

    def plan(self, sequence: Sequence) -> RoundPlan:
        """The next round."""
        is_first = sequence.num_new_tokens == 0
        self._num_wanted = self._best_number(len(sequence.log))
        if num_alone := self._patience.pause_tokens():
            return RoundPlan(0, num_alone, 0.0)
        num_since_probe = sequence.num_new_tokens - self._probed_at
        if num_since_probe >= PROBE_EVERY:
            self._num_wanted = min(self._num_wanted + 1, self._max_drafts)
            self._probed_at = sequence.num_new_tokens
        elif self._num_wanted == 0 and not is_first:
            return RoundPlan(0, PROBE_EVERY - num_since_probe, 0.0)
        num_alone = _tokens_without_a_draft(sequence)
        timeout_s = self._propose_timeout_s(len(sequence.log))
        return RoundPlan(self._num_wanted, num_alone, timeout_s)

    def observe(self, sequence: Sequence, committed: Committed) -> None:
        """A pass of the target has come back."""
        self._patience.observe(committed)
        propose = committed.propose
        if propose is not None:
            num_made = self._num_wanted if propose.is_missed else len(propose.drafts.token_ids)
            self._shared.costs.record_propose(num_made, propose.elapsed_s)
        parents, path = committed.drafts_and_path()
        self._acceptance.record(parents, path, DECAY)
        self._shared.acceptance.record(parents, path, SHARED_DECAY)
        self._observe_batch(sequence, committed)

    def _observe_batch(self, sequence: Sequence, committed: Committed) -> None:
        self._shared.observe_pass(sequence, committed)
        timing = committed.timing
        if timing.pass_rows == 0:
            return
        self._mean_committed += 0.1 * (len(committed.token_ids) - self._mean_committed)
        other_rows = timing.pass_rows - 1 - committed.num_draft_tokens
        self._other_rows += 0.2 * (other_rows - self._other_rows)
        other_tokens = (timing.pass_sequences - 1) * self._mean_committed
        self._other_tokens += 0.2 * (other_tokens - self._other_tokens)

    def _best_number(self, context: int) -> int:
        """The number of drafts with the highest expected rate of committed tokens."""
        best, best_rate = 0, 0.0
        expected = 1.0
        chances: list[float] = []
        for number in range(self._max_drafts + 1):
            if number:
                chances.append(self._chance(number - 1, chances))
                expected += chances[-1]
            rows = round(self._other_rows) + 1 + number
            costs = self._shared.costs
            time_s = costs.pass_s(rows, context) + costs.propose_s(number)
            rate = (self._other_tokens + expected) / time_s
            if rate > best_rate:
                best, best_rate = number, rate
        return best

    def _chance(self, place: int, before: Items[float]) -> float:
        """Chance that the draft at a place becomes text, by the chances of those before it."""
        parent = self._acceptance.parent(place)
        if parent is None:
            parent = self._shared.acceptance.parent(place)
        if parent is None:
            parent = place - 1
        rate = self._acceptance.rate(place, self._shared.prior(place), PRIOR_WEIGHT)
        return rate * before[parent] if parent >= 0 else rate

    def _propose_timeout_s(self, context: int) -> float:
        """Twice what it usually takes, and no longer than a plain pass."""
        plain_s = max(self._shared.costs.pass_s(1, context), SHORTEST_TIMEOUT_S)
        usual_s = self._shared.costs.propose_s(self._num_wanted)
        return min(max(2 * usual_s, SHORTEST_TIMEOUT_S), plain_s) if usual_s else plain_s


def _tokens_without_a_draft(sequence: Sequence) -> int:
    """For how many tokens the target goes on when drafts are wanted but no draft is there.

    Behind the prompt only for one: the draft is reading the prompt just then.
    """
    return 1 if sequence.num_new_tokens == 0 else PROBE_EVERY


class _Patience:
    """Leaves a draft alone after some misses in a row, each time for twice as long."""

    def __init__(self) -> None:
        self._num_misses = 0
        self._pause_tokens = FIRST_PAUSE_TOKENS

    def pause_tokens(self) -> int:
        """For how many tokens the target should go on alone now; mostly 0."""
        if self._num_misses < MAX_MISSES:
            return 0
        self._num_misses = 0
        self._pause_tokens *= 2
        return self._pause_tokens // 2

    def observe(self, committed: Committed) -> None:
        """Count a miss, or forget the misses."""
        if committed.propose is None:
            return
        if committed.propose.is_missed:
            self._num_misses += 1
        else:
            self._num_misses = 0
            self._pause_tokens = FIRST_PAUSE_TOKENS
