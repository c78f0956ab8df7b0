"""How many drafts the next round of a sequence gets, zero included.

A draft pays while it brings committed tokens faster than the target makes them anyway. So the
number is the one with the highest expected rate

    (1 + expected accepted drafts) / (time of the pass + time to propose),

where acceptance is conditional on the draft before, in a tree on the one that it follows, and the
time of a wider pass comes from the target's measured cost table. How likely a draft is accepted
follows from what its drafter says of it, or from its place (`coordinator.draft_experience`).

- A drafter that does not say is asked for the best number; every `PROBE_EVERY` tokens for one draft
  more, or for one when there were none and the target went on alone.
- One that does is asked for as many as there may be, and stops by itself where a draft more would
  cost more than it is likely to bring; of what it proposes the best number is verified. Where its
  proposals bring less than they cost, the target goes on alone for some tokens before the next.

Drafts that are sampled, for `rejection` and `block`, are all verified and their number follows from
places alone: neither which are left out nor how long they take may depend on what they say.

Knows no network; times are seconds.
"""

from collections.abc import Sequence as Items
from dataclasses import replace
from math import ceil

from coordinator.acceptance_rates import AcceptanceRates
from coordinator.decode_loop import Committed, RoundPlan
from coordinator.draft_experience import (
    TRUST_DECAY,
    WORTH_DECAY,
    SharedExperience,
    Trust,
    Worth,
)
from coordinator.patience import Patience
from coordinator.sequence import Sequence
from paceline.rounds import Drafts

PROBE_EVERY = 32
"""Tokens between two tries of a draft more than pays, so that a text that turns repetitive is
noticed."""
PAUSE_TOKENS = 4
"""Least tokens between two tries of a drafter that says how sure it is and does not pay: a match
that is found later is worth less."""
TRY_SHARE = 0.02
"""Most of the time that such tries may take: those of a slow drafter are further apart."""
EXACT_TIMEOUT_S = 1.0
"""Least patience with a draft whose number of tokens the request asked for."""
SHORTEST_TIMEOUT_S = 0.02
"""No proposal is given up sooner: less is within the noise of a busy machine."""
SHARED_DECAY = 0.995
DECAY = 0.9
"""What an older observation of the same sequence counts against the next newer one."""
PRIOR_WEIGHT = 2.0
"""Observations that the other sequences' experience counts for."""
MAX_MIN_CONFIDENCE = 0.5
"""A draft that is accepted more often than not is always welcome."""
UNSURE = 0.25
"""A usual confidence where drafting stops."""


class PlainDecoding:
    """No speculation: the target goes on alone to the end."""

    def plan(self, sequence: Sequence) -> RoundPlan:
        """The next round."""
        return RoundPlan(0, sequence.num_left, 0.0)

    def choose(self, sequence: Sequence, drafts: Drafts) -> Drafts:
        """All of them."""
        return drafts.head(len(drafts.token_ids))

    def observe(self, sequence: Sequence, committed: Committed) -> None:
        """Nothing to learn."""


class ExactSpeculation:
    """The number of drafts that the request asked for, in every round."""

    def __init__(self, shared: SharedExperience, num_speculative_tokens: int) -> None:
        self._shared = shared
        self._num_drafts = num_speculative_tokens
        self._patience = Patience()

    def plan(self, sequence: Sequence) -> RoundPlan:
        """The next round."""
        if num_alone := self._patience.pause_tokens():
            return RoundPlan(0, num_alone, 0.0)
        # A draft as slow as the target, four times over, is still what was asked for.
        slowest_s = 4 * self._num_drafts * self._shared.costs.pass_s(1, len(sequence.log))
        num_alone = _tokens_without_a_draft(sequence)
        return RoundPlan(self._num_drafts, num_alone, max(EXACT_TIMEOUT_S, slowest_s))

    def choose(self, sequence: Sequence, drafts: Drafts) -> Drafts:
        """All of them."""
        return drafts.head(len(drafts.token_ids))

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
        self._trust = Trust(TRUST_DECAY, shared.trust)
        self._worth = Worth(WORTH_DECAY, shared.worth.mean)
        self._patience = Patience()
        self._num_wanted = 0
        self._max_steps = 0
        self._confidences: tuple[float, ...] = ()
        """What the drafter said of the drafts that are being verified."""
        self._probed_at = 0
        """Tokens of the answer when a draft was tried last that did not seem to pay."""
        self._other_rows = 0.0
        self._other_tokens = 0.0
        self._mean_committed = 1.0

    def plan(self, sequence: Sequence) -> RoundPlan:
        """The next round."""
        self._confidences = ()
        context = len(sequence.log)
        says_confidences = self._says_confidences(sequence)
        self._num_wanted = self._max_drafts if says_confidences else self._best_number(context)
        self._max_steps = self._most_in_time(context) if says_confidences else 0
        if num_alone := self._patience.pause_tokens():
            return RoundPlan(0, num_alone, 0.0)
        if num_alone := self._tokens_before_probe(sequence):
            return RoundPlan(0, num_alone, 0.0)
        num_alone = _tokens_without_a_draft(sequence)
        plan = RoundPlan(self._num_wanted, num_alone, self._propose_timeout_s(context))
        if not says_confidences:
            return plan
        row, step = self._min_confidences(context)
        return replace(
            plan,
            min_confidence=row,
            min_step_confidence=step,
            max_steps=self._max_steps,
        )

    def _says_confidences(self, sequence: Sequence) -> bool:
        return self._shared.says_confidences and not sequence.settings.samples_drafts

    def _tokens_before_probe(self, sequence: Sequence) -> int:
        """For how many tokens the target should go on alone, as nothing pays now; mostly 0."""
        num_new = sequence.num_new_tokens
        num_since_probe = num_new - self._probed_at
        if self._says_confidences(sequence):
            if self._worth.mean >= 0 or num_new == 0:
                return 0
            pause = max(PAUSE_TOKENS, ceil(self._try_tokens(len(sequence.log)) / TRY_SHARE))
        else:
            pause = PROBE_EVERY
            if num_since_probe >= pause:
                self._num_wanted = min(self._num_wanted + 1, self._max_drafts)
            elif self._num_wanted > 0 or num_new == 0:
                return 0
        if num_since_probe >= pause:
            self._probed_at = num_new
            return 0
        return pause - num_since_probe

    def _try_tokens(self, context: int) -> float:
        """How many tokens the target makes alone while one draft is proposed."""
        return self._shared.costs.propose_s(1) * self._plain_rate(context)

    def choose(self, sequence: Sequence, drafts: Drafts) -> Drafts:
        """As many of the drafts as pay, where their drafter says how sure it is of them."""
        if not drafts.confidences or drafts.supports:
            return drafts.head(len(drafts.token_ids))
        self._shared.says_confidences = True
        chances: list[float] = []
        parents = drafts.parents or range(-1, len(drafts.token_ids) - 1)
        for confidence, parent in zip(drafts.confidences, parents, strict=False):
            chance = self._trust.chance(confidence)
            chances.append(chance * chances[parent] if parent >= 0 else chance)
        number = self._best_head(chances, len(sequence.log), are_made=True)
        self._confidences = tuple(drafts.confidences[:number])
        return drafts.head(number)

    def observe(self, sequence: Sequence, committed: Committed) -> None:
        """A pass of the target has come back."""
        self._patience.observe(committed)
        propose = committed.propose
        if propose is not None:
            num_asked = self._max_steps or self._num_wanted
            num_made = num_asked if propose.is_missed else len(propose.drafts.token_ids)
            self._shared.costs.record_propose(num_made, propose.elapsed_s, propose.timing)
        parents, path = committed.drafts_and_path()
        if self._confidences:
            self._trust.record(self._confidences, parents, path)
        else:
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
        if committed.propose is not None:
            context, costs = len(sequence.log), self._shared.costs
            elapsed_s = costs.pass_s(timing.pass_rows, context) + committed.propose.elapsed_s
            gain = self._other_tokens + len(committed.token_ids)
            gain -= elapsed_s * self._plain_rate(context)
            self._worth.record(gain)
            self._shared.worth.record(gain)

    def _best_number(self, context: int) -> int:
        """The number of drafts to ask for, judging by their places alone."""
        chances: list[float] = []
        for place in range(self._max_drafts):
            chances.append(self._chance(place, chances))
        return self._best_head(chances, context, are_made=False)

    def _chance(self, place: int, before: Items[float]) -> float:
        """Chance that the draft at a place becomes text, by the chances of those before it."""
        parent = self._acceptance.parent(place)
        if parent is None:
            parent = self._shared.acceptance.parent(place)
        if parent is None:
            parent = place - 1
        rate = self._acceptance.rate(place, self._shared.prior(place), PRIOR_WEIGHT)
        return rate * before[parent] if parent >= 0 else rate

    def _best_head(self, chances: Items[float], context: int, are_made: bool) -> int:
        """The number of drafts with the highest expected rate of committed tokens.

        `chances`: that each draft becomes text; `are_made`: they are proposed already.
        """
        other_rows = round(self._other_rows)
        expected = 1.0
        best, best_rate = 0, self._rate(expected, other_rows + 1, context, 0.0)
        for number, chance in enumerate(chances, 1):
            expected += chance
            propose_s = 0.0 if are_made else self._shared.costs.propose_s(number)
            rate = self._rate(expected, other_rows + 1 + number, context, propose_s)
            if rate > best_rate:
                best, best_rate = number, rate
        return best

    def _rate(self, expected: float, num_rows: int, context: int, propose_s: float) -> float:
        time_s = self._shared.costs.pass_s(num_rows, context) + propose_s
        return (self._other_tokens + expected) / time_s

    def _plain_rate(self, context: int) -> float:
        return self._rate(1.0, round(self._other_rows) + 1, context, 0.0)

    def _min_confidences(self, context: int) -> tuple[float, float]:
        """With less a draft more costs more time than it brings tokens: to be verified, and to be
        made and verified.

        The first row more may cost more than another one: what does not pay then is not verified.
        """
        costs, num_rows = self._shared.costs, round(self._other_rows) + 1
        row_s = costs.pass_s(num_rows + self._max_drafts, context) - costs.pass_s(num_rows, context)
        row_s /= self._max_drafts
        trust = self._trust.chance(UNSURE) / UNSURE
        tokens_per_s = self._plain_rate(context) / trust
        row, step = row_s * tokens_per_s, (row_s + costs.step_s) * tokens_per_s
        return min(row, MAX_MIN_CONFIDENCE), min(step, MAX_MIN_CONFIDENCE)

    def _most_in_time(self, context: int) -> int:
        """As many steps as usually fit into half the time that a proposal may take."""
        per_draft_s = self._shared.costs.step_s
        if per_draft_s == 0.0:
            return self._max_drafts
        longest_s = max(self._shared.costs.pass_s(1, context), SHORTEST_TIMEOUT_S)
        return min(max(int(longest_s / 2 / per_draft_s), 1), self._max_drafts)

    def _propose_timeout_s(self, context: int) -> float:
        """Twice what it usually takes, and no longer than a plain pass."""
        plain_s = max(self._shared.costs.pass_s(1, context), SHORTEST_TIMEOUT_S)
        usual_s = self._shared.costs.propose_s(self._max_steps or self._num_wanted)
        return min(max(2 * usual_s, SHORTEST_TIMEOUT_S), plain_s) if usual_s else plain_s


def _tokens_without_a_draft(sequence: Sequence) -> int:
    """For how many tokens the target goes on when drafts are wanted but no draft is there.

    Behind the prompt only for one: the draft is reading the prompt just then.
    """
    return 1 if sequence.num_new_tokens == 0 else PROBE_EVERY
