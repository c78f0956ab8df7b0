"""`rejection` and `block` keep the target's law: exactly, by enumeration in fractions.

Two small models whose laws depend on all tokens before. Every draft and every decision that chance
can make is walked with its probability, round after round, and the joint law of the first tokens
must be the target's own, as fractions. What no enumeration of decisions can see, that the numbers
behind them are independent, is the subject of `test_draws` and `test_laws_of_answers`.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from enumerated_rounds import (
    FAULTLESS,
    VOCAB_SIZE,
    Faults,
    Models,
    Prefix,
    Rule,
    Script,
    all_runs,
    joint_law,
    one_round,
    target_joint_law,
)

from paceline.engine.draws import Law
from target_service import acceptance
from target_service.acceptance import Acceptance, Proposed, block, rejection

RULES = [rejection, block]
MODELS = [
    *(Models(seed) for seed in range(4)),
    Models(4, num_drafts=(1,)),
    Models(5, num_drafts=(3,)),
    Models(6, num_drafts=(0, 2, 3, 1)),
    Models(7, num_drafts=(2, 0)),
    *(Models(seed, num_drafts=(3, 2), stop=1) for seed in (8, 9, 10)),
    *(Models(seed, foreign=True) for seed in (11, 12)),
    *(Models(seed, num_drafts=(3,), one_hot=True) for seed in (13, 14)),
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("models", MODELS, ids=str)
def test_the_joint_law_of_what_is_committed_is_the_targets(rule: Rule, models: Models) -> None:
    assert joint_law(models, rule) == target_joint_law(models)


def num_accepted(models: Models, rule: Rule) -> Fraction:
    """Expected number of accepted drafts in the first round."""
    total = Fraction(0)

    def run(chance: Script) -> Prefix:
        decided, _ = one_round(models, rule, (), chance, FAULTLESS)
        return (decided.num_accepted_tokens,)

    for (number,), probability in all_runs(run):
        total += number * probability
    return total


def test_block_accepts_at_least_as_many_drafts_and_sometimes_more() -> None:
    accepted = [(num_accepted(m, rejection), num_accepted(m, block)) for m in MODELS]
    assert all(by_block >= one_by_one for one_by_one, by_block in accepted)
    assert sum(by_block > one_by_one for one_by_one, by_block in accepted) >= 3


@pytest.mark.parametrize("rule", RULES)
def test_the_targets_own_drafts_are_all_accepted(rule: Rule) -> None:
    class Itself(Models):
        def draft(self, prefix: Prefix) -> Law:
            return self.target(prefix)

    assert num_accepted(Itself(0, num_drafts=(3,)), rule) == 3


def is_caught(rule: Rule, faults: Faults = FAULTLESS) -> bool:
    return any(joint_law(m, rule, faults) != target_joint_law(m) for m in MODELS[:4])


def recovered_from_the_target(
    weight: Fraction, law: Law, draft: Proposed, chance: Script, position: int
) -> int:
    return chance.pick(position, law)


def recovered_without_weight(
    weight: Fraction, law: Law, draft: Proposed, chance: Script, position: int
) -> int:
    return chance.pick(position, np.maximum(law - draft.law, 0))


def without_recovered(rule: Rule) -> Rule:
    def mutant(*args: object) -> Acceptance:
        decided = rule(*args)
        return Acceptance(
            decided.num_accepted_tokens, decided.token_ids[: decided.num_accepted_tokens]
        )

    return mutant


def with_bonus_row(offset: int) -> Callable[[Rule], Rule]:
    def mutate(rule: Rule) -> Rule:
        def mutant(
            target_law: acceptance.TargetLaw, proposed: Sequence[Proposed], *rest: object
        ) -> Acceptance:
            def shifted(index: int) -> Law:
                return target_law(index + offset if index == len(proposed) else index)

            return rule(shifted, proposed, *rest)

        return mutant

    return mutate


def without_its_least_token(law: Law) -> Law:
    """A law that is reported with its tail cut off, but not made whole again."""
    return np.array([p / 2 for p in law], dtype=object)


def as_law(percent: str) -> Law:
    return np.array([Fraction(int(share), 100) for share in percent.split()], dtype=object)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("target_law", "draft_law", "acceptance"),
    [
        ("40 40 10 10", "10 10 40 40", Fraction(40, 100)),
        ("50 50 0", "50 30 20", Fraction(80, 100)),
        ("50 50", "100 0", Fraction(50, 100)),
        ("70 20 10", "40 30 30", Fraction(70, 100)),
        ("40 35 25", "40 35 25", Fraction(1)),
        ("0 100 0", "30 30 40", Fraction(30, 100)),
        ("0 100 0", "0 100 0", Fraction(1)),
        ("0 0 100", "50 50 0", Fraction(0)),
    ],
)
def test_one_draft_of_known_laws(
    rule: Rule, target_law: str, draft_law: str, acceptance: Fraction
) -> None:
    """CASES 20: laws with which faulty engines were found out, as their reports have them."""
    target, draft = as_law(target_law), as_law(draft_law)

    def run(chance: Script) -> Prefix:
        token_id = chance.pick(0, draft)
        proposed = [Proposed(token_id, draft, draft[token_id])]
        decided = rule(lambda index: target, proposed, chance, 0, False)
        return (*decided.token_ids, decided.num_accepted_tokens)

    said, accepted = [Fraction(0)] * len(target), Fraction(0)
    for (token_id, was_accepted), probability in all_runs(run):
        said[token_id] += probability
        accepted += was_accepted * probability
    assert said == list(target)
    assert accepted == acceptance


@pytest.mark.parametrize("rule", RULES)
def test_a_recovered_token_from_the_targets_whole_law_is_caught(
    rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, "_recovered", recovered_from_the_target)
    assert is_caught(rule)


def test_a_residual_of_block_without_its_weight_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptance, "_recovered", recovered_without_weight)
    assert is_caught(block)
    assert not is_caught(rejection)


@pytest.mark.parametrize("rule", RULES)
def test_a_recovered_token_that_is_left_out_is_caught(rule: Rule) -> None:
    assert is_caught(without_recovered(rule))


@pytest.mark.parametrize("rule", RULES)
def test_a_bonus_token_from_the_row_before_is_caught(rule: Rule) -> None:
    assert is_caught(with_bonus_row(-1)(rule))
    assert not is_caught(with_bonus_row(0)(rule))


@pytest.mark.parametrize("rule", RULES)
def test_a_draft_law_that_does_not_sum_to_one_is_caught(rule: Rule) -> None:
    assert is_caught(rule, Faults(report=without_its_least_token))


@pytest.mark.parametrize("rule", RULES)
def test_a_law_that_is_not_the_one_sampled_from_is_caught(rule: Rule) -> None:
    """As when one side filters with top-p and the other does not."""

    def filtered(law: Law) -> Law:
        kept = np.array([p if p >= max(law) / 2 else p / 9 for p in law], dtype=object)
        return np.array([p / sum(kept) for p in kept], dtype=object)

    assert is_caught(rule, Faults(report=filtered))


@pytest.mark.parametrize("rule", RULES)
def test_a_draft_that_is_dropped_for_its_own_probability_is_caught(rule: Rule) -> None:
    def is_unlikely(token_id: int, law: Law) -> bool:
        return bool(law[token_id] < Fraction(1, 3))

    assert is_caught(rule, Faults(is_dropped=is_unlikely))


@pytest.mark.parametrize("rule", RULES)
def test_an_invalid_draft_that_is_dropped_instead_of_rejected_is_caught(rule: Rule) -> None:
    faults = Faults(is_dropped=lambda token_id, law: token_id >= VOCAB_SIZE)
    models = [m for m in MODELS if m.foreign]
    assert any(joint_law(m, rule, faults) != target_joint_law(m) for m in models)
    assert all(joint_law(m, rule) == target_joint_law(m) for m in models)
