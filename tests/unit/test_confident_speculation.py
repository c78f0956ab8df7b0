"""Drafts whose drafter says how sure it is: how many are asked for, and how many are verified."""

from dataclasses import dataclass, field

import pytest

from coordinator.decode_loop import Committed, ProposeOutcome, RoundPlan, Speculation
from coordinator.draft_experience import SharedExperience, Trust
from coordinator.pass_costs import CostModel
from coordinator.sequence import Sequence
from coordinator.speculation import PAUSE_TOKENS, AdaptiveSpeculation, ExactSpeculation
from paceline.rounds import AcceptanceRule, Drafts, PassCost, RoundTiming, SequenceSettings, Support
from paceline.token_log import TokenLog

MAX_DRAFTS = 7
COSTS = [PassCost(1, 512, 20.0), *(PassCost(rows, 512, 23.0 + rows) for rows in (2, 4, 8, 16))]
"""The first row more costs a quarter of a plain pass, another one a twentieth."""


def new_sequence() -> Sequence:
    return Sequence(SequenceSettings(max_length=10**6), TokenLog.of([1] * 8), 8)


def experience() -> SharedExperience:
    return SharedExperience(CostModel(COSTS))


def drafts(confidences: list[float], *, sampled: bool = False) -> Drafts:
    supports = [Support((1,), (1.0,))] * len(confidences) if sampled else []
    return Drafts([1] * len(confidences), supports=supports, confidences=confidences)


def num_chosen(confidences: list[float], *, sampled: bool = False) -> int:
    policy = AdaptiveSpeculation(experience(), MAX_DRAFTS)
    return len(policy.choose(new_sequence(), drafts(confidences, sampled=sampled)).token_ids)


@dataclass
class Simulation:
    """Rounds with a drafter that is so sure, and as many accepted."""

    speculation: Speculation
    confidences: list[float] = field(default_factory=lambda: [0.9] * MAX_DRAFTS)
    num_accepted: int = MAX_DRAFTS
    propose_s: float = 0.001
    sequence: Sequence = field(default_factory=new_sequence)
    num_verified: list[int] = field(default_factory=list)
    plan: RoundPlan = field(default_factory=lambda: RoundPlan(0, 0, 0.0))

    def run(self, num_rounds: int) -> list[int]:
        """How many drafts were asked for in each round."""
        asked = []
        for _ in range(num_rounds):
            self.plan = self.speculation.plan(self.sequence)
            asked.append(self.plan.num_speculative_tokens)
            if self.sequence.num_new_tokens and asked[-1]:
                self.verify(drafts(self.confidences))
            else:
                self.commit(self.plan.max_new_tokens, Drafts(), None)
        return asked

    def verify(self, proposed: Drafts) -> None:
        chosen = self.speculation.choose(self.sequence, proposed)
        self.num_verified.append(len(chosen.token_ids))
        propose = ProposeOutcome(proposed, self.propose_s)
        num_accepted = min(self.num_accepted, len(chosen.token_ids))
        self.commit(num_accepted + 1, chosen, propose)

    def commit(self, num_tokens: int, chosen: Drafts, propose: ProposeOutcome | None) -> None:
        num_drafts, rows = len(chosen.token_ids), 1 + len(chosen.token_ids)
        seconds = (20 if rows == 1 else 23 + rows) / 1000
        committed = Committed(
            token_ids=self.sequence.commit(len(self.sequence.log), tuple([1] * num_tokens)),
            num_draft_tokens=num_drafts,
            num_accepted_tokens=min(self.num_accepted, num_drafts),
            timing=RoundTiming(compute_us=round(seconds * 1e6), pass_rows=rows, pass_sequences=1),
            elapsed_s=seconds,
            propose=propose,
            since_last_s=seconds,
        )
        self.speculation.observe(self.sequence, committed)


def adaptive(**changes: object) -> Simulation:
    return Simulation(AdaptiveSpeculation(experience(), MAX_DRAFTS), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("confidences", "expected"),
    [
        ([], 0),
        ([0.9] * 7, 7),
        ([0.9, 0.9, 0.02, 0.9], 2),
        ([0.2], 0),
        ([0.2, 0.99, 0.99, 0.99, 0.99, 0.99], 6),
        ([0.5], 1),
    ],
    ids=["none", "all", "up to the unlikely", "a row costs more", "what follows pays", "pays"],
)
def test_as_many_are_verified_as_pay(confidences: list[float], expected: int) -> None:
    assert num_chosen(confidences) == expected


def test_a_target_does_not_get_what_it_does_not_read() -> None:
    policy = AdaptiveSpeculation(experience(), MAX_DRAFTS)
    chosen = policy.choose(new_sequence(), drafts([0.9, 0.9]))
    assert (len(chosen.token_ids), chosen.confidences) == (2, ())


@pytest.mark.parametrize("confidence", [0.0, 0.5, 1.0])
def test_of_sampled_drafts_none_is_left_out(confidence: float) -> None:
    """What the drafter says of a draft depends on the value of the one before."""
    assert num_chosen([confidence] * 5, sampled=True) == 5


@pytest.mark.parametrize("rule", [AcceptanceRule.REJECTION, AcceptanceRule.BLOCK])
def test_the_number_of_sampled_drafts_follows_from_their_places(rule: AcceptanceRule) -> None:
    shared = experience()
    Simulation(AdaptiveSpeculation(shared, MAX_DRAFTS)).run(20)
    settings = SequenceSettings(max_length=10**6, temperature=1.0, acceptance_rule=rule)
    sequence = Sequence(settings, TokenLog.of([1] * 8), 8)
    plan = AdaptiveSpeculation(shared, MAX_DRAFTS).plan(sequence)
    assert (plan.min_confidence, plan.min_step_confidence) == (0.0, 0.0)
    assert AdaptiveSpeculation(shared, MAX_DRAFTS).plan(new_sequence()).min_confidence > 0


def test_a_drafter_that_says_how_sure_it_is_is_asked_for_all() -> None:
    simulation = adaptive(confidences=[0.6, 0.01], num_accepted=1)
    assert set(simulation.run(40)[2:]) == {MAX_DRAFTS}
    assert set(simulation.num_verified[1:]) == {1}
    plan = simulation.plan
    assert 0 < plan.min_confidence < plan.min_step_confidence < 0.3, "a draft more does not pay"


def test_a_drafter_that_is_too_sure_is_trusted_less() -> None:
    simulation = adaptive(confidences=[0.6] * MAX_DRAFTS, num_accepted=0, propose_s=0.0)
    simulation.run(60)
    assert simulation.num_verified[0] > 0
    assert simulation.num_verified[-1] == 0


def test_a_drafter_that_is_not_sure_enough_is_trusted_more() -> None:
    simulation = adaptive(confidences=[0.5] * MAX_DRAFTS)
    simulation.run(60)
    assert simulation.num_verified[0] < MAX_DRAFTS
    assert simulation.num_verified[-1] == MAX_DRAFTS


def test_proposals_that_bring_nothing_are_left_out_for_a_while_and_tried_again() -> None:
    simulation = adaptive(confidences=[0.05])
    simulation.run(100)
    late = simulation.run(20)
    assert late.count(0) == late.count(MAX_DRAFTS) == 10
    assert simulation.sequence.num_new_tokens > 100
    simulation.confidences = [0.95] * MAX_DRAFTS
    simulation.run(20)
    assert set(simulation.run(20)) == {MAX_DRAFTS}


def test_a_pause_is_short() -> None:
    simulation = adaptive(confidences=[0.05])
    simulation.run(100)
    paused = [simulation.plan.max_new_tokens for _ in range(20) if 0 in simulation.run(1)]
    assert set(paused) == {PAUSE_TOKENS - 1}


@pytest.mark.parametrize("propose_s", [0.001, 0.004, 0.015])
def test_the_slower_a_drafter_is_that_does_not_pay_the_rarer_it_is_tried(propose_s: float) -> None:
    simulation = adaptive(confidences=[0.05], propose_s=propose_s)
    simulation.run(100)
    num_before, num_tries = simulation.sequence.num_new_tokens, 0
    while num_tries < 20:
        num_tries += sum(1 for number in simulation.run(1) if number)
    seconds_alone = 0.02 * (simulation.sequence.num_new_tokens - num_before)
    assert num_tries * propose_s < 0.025 * seconds_alone


def test_proposals_that_take_longer_than_they_save_are_left_out() -> None:
    simulation = adaptive(confidences=[0.9], propose_s=0.04)
    simulation.run(100)
    assert 0 in simulation.run(2)


def test_an_exact_number_is_neither_cut_nor_made_conditional() -> None:
    simulation = Simulation(ExactSpeculation(experience(), 4), [0.01] * 4, num_accepted=0)
    assert set(simulation.run(30)) == {4}
    assert set(simulation.num_verified) == {4}
    assert (simulation.plan.min_confidence, simulation.plan.min_step_confidence) == (0.0, 0.0)


def test_a_new_sequence_begins_with_what_others_have_seen() -> None:
    shared = experience()
    for _ in range(20):
        policy = AdaptiveSpeculation(shared, MAX_DRAFTS)
        Simulation(policy, [0.8] * MAX_DRAFTS, num_accepted=0).run(50)
    fresh = AdaptiveSpeculation(shared, MAX_DRAFTS)
    assert len(fresh.choose(new_sequence(), drafts([0.8] * MAX_DRAFTS)).token_ids) == 0


def test_drafts_behind_the_first_rejected_one_say_nothing() -> None:
    trust = Trust(decay=1.0)
    trust.record([0.9, 0.9, 0.9, 0.9], range(-1, 3), range(1))
    assert trust.accepted == [0.0, 1.0]
    assert trust.expected == [0.0, pytest.approx(1.8)]


def test_in_a_tree_those_that_follow_a_rejected_one_say_nothing() -> None:
    trust = Trust(decay=1.0)
    trust.record([0.9, 0.9, 0.9, 0.9], (-1, -1, 0, 1), (1,))
    assert trust.accepted == [0.0, 1.0]
    assert trust.expected[1] == pytest.approx(2.7)


def test_of_a_tree_as_many_are_verified_as_pay() -> None:
    policy = AdaptiveSpeculation(experience(), MAX_DRAFTS)
    tree = Drafts([1, 2, 3, 4], [-1, 0, 1, -1], (), [0.9, 0.9, 0.01, 0.01])
    assert policy.choose(new_sequence(), tree) == Drafts([1, 2], [-1, 0], ())


def test_trust_differs_between_sure_and_unsure() -> None:
    trust = Trust(decay=1.0)
    for _ in range(100):
        trust.record([0.9, 0.3], (-1, 0), (0,))
    assert trust.chance(0.9) > 0.95
    assert trust.chance(0.3) < 0.1


def test_no_more_steps_are_asked_for_than_a_slow_drafter_makes_in_time() -> None:
    """Copies take none: as many tokens may come as ever."""
    simulation = adaptive(propose_s=0.035)
    assert simulation.run(30)[-1] == MAX_DRAFTS
    assert simulation.plan.max_steps == 2, "5 ms each, and half a plain pass is 10 ms"
    assert adaptive(propose_s=0.007).run(30)[-1] == MAX_DRAFTS
