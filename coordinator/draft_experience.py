"""How often drafts were accepted, and so how likely the next ones are.

Where a drafter says how sure it is of each token, that counts, corrected by how often it was right;
where it does not, what counts is how often the draft at that place was accepted
(`coordinator.acceptance_rates`). Either is learned
from the sequence itself, with what other sequences saw as a prior.
"""

from collections.abc import Collection
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from coordinator.acceptance_rates import AcceptanceRates
from coordinator.decode_loop import Committed
from coordinator.pass_costs import CostModel
from coordinator.sequence import Sequence

FIRST_GUESS = 0.7
"""Acceptance of a drafter that nobody has seen yet: high enough to try."""
SURE = 0.5
"""A drafter that is wrong where it is unsure may be right where it is sure."""
MOST_SURE = 0.995
TRUST_DECAY = 0.95
SHARED_TRUST_DECAY = 0.998
WORTH_DECAY = 0.95
SHARED_WORTH_DECAY = 0.998
FIRST_WORTH = 0.2


@dataclass(slots=True)
class Trust:
    """How often drafts were accepted over how often their drafter thought that they would be."""

    decay: float
    """What an older draft counts against the next newer one."""
    prior: "Trust | None" = None
    """What the others have seen; it learns along."""
    prior_weight: float = 6.0
    """Accepted drafts that the prior counts for."""
    expected: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Of drafts that the drafter was not so sure of, and of those that it was sure of."""
    accepted: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def record(self, confidences: Items[float], parents: Items[int], path: Collection[int]) -> None:
        """Add one round: what was said of each draft, the drafts that they follow (-1: the span),
        and those that were accepted. Those that follow a rejected one say nothing."""
        for place, (confidence, parent) in enumerate(zip(confidences, parents, strict=False)):
            if parent < 0 or parent in path:
                chance, is_sure = self._prior_chance(confidence), confidence >= SURE
                self.expected[is_sure] = self.expected[is_sure] * self.decay + chance
                self.accepted[is_sure] = self.accepted[is_sure] * self.decay + (place in path)
        if self.prior is not None:
            self.prior.record(confidences, parents, path)

    def chance(self, confidence: float) -> float:
        """Chance of acceptance of a draft that its drafter is so sure of."""
        is_sure = confidence >= SURE
        weight = self.prior_weight
        ratio = (self.accepted[is_sure] + weight) / (self.expected[is_sure] + weight)
        return min(self._prior_chance(confidence) * ratio, MOST_SURE)

    def _prior_chance(self, confidence: float) -> float:
        return min(confidence, 1.0) if self.prior is None else self.prior.chance(confidence)


@dataclass(slots=True)
class Worth:
    """How many tokens a round with a proposal makes more than plain decoding in the same time."""

    decay: float
    mean: float

    def record(self, gain: float) -> None:
        """Add one round."""
        self.mean += (1 - self.decay) * (gain - self.mean)


@dataclass(slots=True)
class SharedExperience:
    """What all sequences with the same target and drafter have seen."""

    costs: CostModel
    acceptance: AcceptanceRates = field(default_factory=AcceptanceRates)
    trust: Trust = field(default_factory=lambda: Trust(SHARED_TRUST_DECAY))
    worth: Worth = field(default_factory=lambda: Worth(SHARED_WORTH_DECAY, FIRST_WORTH))
    says_confidences: bool = False
    """Whether the drafter says how sure it is of its drafts."""

    def observe_pass(self, sequence: Sequence, committed: Committed) -> None:
        """Learn what a pass costs, unless it was a prefill."""
        timing = committed.timing
        if timing.pass_rows and sequence.num_new_tokens > len(committed.token_ids):
            self.costs.record_pass(timing.pass_rows, len(sequence.log), timing.compute_us / 1e6)

    def prior(self, place: int) -> float:
        """Chance of acceptance of the draft at a place, for a sequence that is new."""
        return self.acceptance.rate(place, FIRST_GUESS, prior_weight=4.0)
