"""Every draft and every decision of chance that rounds can meet, each with its probability.

The laws of small models that depend on all tokens before, as fractions, so that what comes of the
rounds can be compared without any rounding.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from random import Random

import numpy as np

from paceline.engine.draws import Law
from target_service.acceptance import Acceptance, Proposed, useful_drafts

VOCAB_SIZE = 3
NUM_TOKENS = 4
Prefix = tuple[int, ...]
Joint = dict[Prefix, Fraction]
Rule = Callable[..., Acceptance]


@dataclass(slots=True)
class Script:
    """Chance that follows a script, then always takes the first possibility."""

    outcomes: Sequence[int]
    probability: Fraction = Fraction(1)
    open: list[tuple[int, ...]] = field(default_factory=list)
    """Scripts of the possibilities that were not taken."""
    _taken: list[int] = field(default_factory=list)

    def happens(self, position: int, probability: Fraction) -> bool:
        probability = min(Fraction(probability), Fraction(1))
        return bool(self._decide([1 - probability, probability]))

    def pick(self, position: int, weights: Law) -> int:
        total = sum(weights)
        return self._decide([Fraction(weight) / total for weight in weights])

    def _decide(self, probabilities: Sequence[Fraction]) -> int:
        possible = [outcome for outcome, p in enumerate(probabilities) if p > 0]
        index = len(self._taken)
        if index < len(self.outcomes):
            outcome = self.outcomes[index]
        else:
            outcome, *others = possible
            self.open += [(*self._taken, other) for other in others]
        self._taken.append(outcome)
        self.probability *= probabilities[outcome]
        return outcome


def all_runs(run: Callable[[Script], Prefix]) -> Iterator[tuple[Prefix, Fraction]]:
    """Every result with its probability."""
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        script = Script(scripts.pop())
        result = run(script)
        yield result, script.probability
        scripts += script.open


@dataclass(frozen=True)
class Models:
    """A target and a draft, and how rounds go."""

    seed: int
    num_drafts: tuple[int, ...] = (2,)
    """By the length of the sequence, in turns."""
    stop: int | None = None
    foreign: bool = False
    """The draft has a token more than the target."""
    one_hot: bool = False

    def target(self, prefix: Prefix) -> Law:
        return _law(f"{self.seed} target {prefix}", VOCAB_SIZE)

    def draft(self, prefix: Prefix) -> Law:
        law = _law(f"{self.seed} draft {prefix}", VOCAB_SIZE + self.foreign)
        if self.one_hot:
            law = np.array([Fraction(p == max(law)) for p in law], dtype=object)
            law[list(law).index(1) + 1 :] = Fraction(0)
        return law

    def has_ended(self, prefix: Prefix) -> bool:
        return len(prefix) >= NUM_TOKENS or self.stop in prefix


@cache
def _law(name: str, size: int) -> Law:
    """Some law, a third of its tokens without probability, as filters leave it."""
    random = Random(name)
    weights = [random.choice([0, 1, 1, 2, 5]) for _ in range(size)]
    if not any(weights[:VOCAB_SIZE]):
        weights[0] = 1
    return np.array([Fraction(weight, sum(weights)) for weight in weights], dtype=object)


@dataclass(frozen=True)
class Faults:
    """Where a draft goes wrong on its way; the faultless one is the rule of the product."""

    report: Callable[[Law], Law] = lambda law: law
    """What the draft says that it sampled from."""
    is_dropped: Callable[[int, Law], bool] = lambda token_id, law: False
    """Whether the proposal ends before this token, although it was drawn."""


FAULTLESS = Faults()


def one_round(
    models: Models, rule: Rule, prefix: Prefix, chance: Script, faults: Faults
) -> tuple[Acceptance, Prefix]:
    """A round behind `prefix`: what it decides, and the sequence that comes of it."""
    proposed: list[Proposed] = []
    drafted = prefix
    for _ in range(models.num_drafts[len(prefix) % len(models.num_drafts)]):
        law = models.draft(drafted)
        token_id = chance.pick(len(drafted), law)
        if faults.is_dropped(token_id, law):
            break
        reported = faults.report(law)
        proposed.append(Proposed(token_id, reported[:VOCAB_SIZE], reported[token_id]))
        drafted = (*drafted, token_id)
        if token_id >= VOCAB_SIZE:
            break
    stops = () if models.stop is None else (models.stop,)
    useful = useful_drafts([p.token_id for p in proposed], stops, 99)
    proposed = proposed[: len(useful)]
    has_bonus = not (useful and useful[-1] in stops)

    def target_law(index: int) -> Law:
        return models.target((*prefix, *useful[:index]))

    decided = rule(target_law, proposed, chance, len(prefix), has_bonus)
    return decided, (*prefix, *decided.token_ids)[:NUM_TOKENS]


def joint_law(models: Models, rule: Rule, faults: Faults = FAULTLESS) -> Joint:
    """The law of the first tokens, after as many rounds as they need."""
    ended: Joint = defaultdict(Fraction)
    running: Joint = {(): Fraction(1)}
    while running:
        prefix = min(running, key=len)
        share = running.pop(prefix)

        def run(chance: Script, prefix: Prefix = prefix) -> Prefix:
            return one_round(models, rule, prefix, chance, faults)[1]

        results = [*all_runs(run)]
        # A round that commits nothing is made again.
        progress = 1 - sum(p for result, p in results if result == prefix)
        for result, probability in results:
            if result != prefix:
                onward = ended if models.has_ended(result) else running
                onward[result] = onward.get(result, Fraction(0)) + share * probability / progress
    return dict(ended)


def target_joint_law(models: Models) -> Joint:
    """The same of the target alone."""
    ended: Joint = {}
    running: Joint = {(): Fraction(1)}
    while running:
        prefix, share = running.popitem()
        for token_id, probability in enumerate(models.target(prefix)):
            if probability:
                longer = (*prefix, token_id)
                (ended if models.has_ended(longer) else running)[longer] = share * probability
    return ended
