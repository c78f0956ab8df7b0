"""How many drafts a round gets: as many as pay, none when none do, and again when they do again."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from coordinator.acceptance_rates import AcceptanceRates
from coordinator.decode_loop import Committed, ProposeOutcome, RoundPlan, Speculation
from coordinator.draft_experience import SharedExperience
from coordinator.pass_costs import CostModel
from coordinator.patience import FIRST_PAUSE_TOKENS, MAX_MISSES
from coordinator.sequence import Sequence
from coordinator.speculation import (
    EXACT_TIMEOUT_S,
    PROBE_EVERY,
    AdaptiveSpeculation,
    ExactSpeculation,
    PlainDecoding,
)
from paceline.rounds import Drafts, PassCost, RoundTiming, SequenceSettings
from paceline.token_log import TokenLog

MAX_DRAFTS = 7
COSTS = [PassCost(rows, 512, 20.0 + rows) for rows in (1, 2, 4, 8, 16)]
"""A row more costs a twentieth of a plain pass."""


def new_sequence() -> Sequence:
    return Sequence(SequenceSettings(max_length=10**6), TokenLog.of([1] * 8), 8)


@dataclass
class Simulation:
    """Rounds on a machine whose times are the cost table's."""

    speculation: Speculation
    propose_s_per_token: float = 0.001
    num_accepted_of: Callable[[int], int] = lambda num_drafts: num_drafts
    failure: str = ""
    sequence: Sequence = field(default_factory=new_sequence)
    plans: list[RoundPlan] = field(default_factory=list)

    def round(self) -> RoundPlan:
        plan = self.speculation.plan(self.sequence)
        self.plans.append(plan)
        is_first = self.sequence.num_new_tokens == 0
        num_drafts = 0 if is_first or self.failure else plan.num_speculative_tokens
        propose = None
        if plan.num_speculative_tokens and not is_first:
            elapsed_s = self.propose_s_per_token * plan.num_speculative_tokens
            propose = ProposeOutcome(Drafts([1] * num_drafts), elapsed_s, failure=self.failure)
        num_passes = 1 if propose else plan.max_new_tokens
        for _ in range(num_passes):
            self.commit(num_drafts, propose)
            propose = None
        return plan

    def commit(self, num_drafts: int, propose: ProposeOutcome | None) -> None:
        num_accepted = self.num_accepted_of(num_drafts) if num_drafts else 0
        start = len(self.sequence.log)
        rows = 1 + num_drafts
        committed = Committed(
            token_ids=self.sequence.commit(start, [1] * (num_accepted + 1)),
            num_draft_tokens=num_drafts,
            num_accepted_tokens=num_accepted,
            timing=RoundTiming(compute_us=(20 + rows) * 1000, pass_rows=rows, pass_sequences=1),
            elapsed_s=(20 + rows) / 1000,
            propose=propose,
            since_last_s=(20 + rows) / 1000,
        )
        self.speculation.observe(self.sequence, committed)

    def numbers(self, num_rounds: int) -> list[int]:
        return [self.round().num_speculative_tokens for _ in range(num_rounds)]


def experience() -> SharedExperience:
    return SharedExperience(CostModel(COSTS))


def adaptive(shared: SharedExperience | None = None, most: int = MAX_DRAFTS) -> Simulation:
    return Simulation(AdaptiveSpeculation(shared or experience(), most))


def test_drafts_that_are_always_accepted_are_asked_for_in_full() -> None:
    simulation = adaptive()
    assert simulation.numbers(30)[5:] == [MAX_DRAFTS] * 25


def test_drafts_that_are_never_accepted_are_given_up_but_for_probes() -> None:
    simulation = adaptive()
    simulation.num_accepted_of = lambda num_drafts: 0
    simulation.numbers(40)
    late = simulation.numbers(20)
    assert set(late) == {0, 1}
    plain = [plan for plan in simulation.plans[-20:] if plan.num_speculative_tokens == 0]
    assert sum(late) <= 10, "a probe between two stretches of plain decoding"
    assert all(plan.max_new_tokens >= PROBE_EVERY - 1 for plan in plain)


def test_drafts_that_begin_to_be_accepted_come_back() -> None:
    simulation = adaptive()
    simulation.num_accepted_of = lambda num_drafts: 0
    simulation.numbers(60)
    simulation.num_accepted_of = lambda num_drafts: num_drafts
    simulation.numbers(40)
    assert min(simulation.numbers(20)) > 3


def test_drafts_that_cost_more_than_they_bring_are_given_up() -> None:
    simulation = adaptive()
    simulation.propose_s_per_token = 0.03  # dearer than a pass of the target
    simulation.numbers(40)
    assert simulation.numbers(20).count(0) >= 10


def test_the_number_follows_how_many_are_accepted() -> None:
    simulation = adaptive()
    simulation.num_accepted_of = lambda num_drafts: min(num_drafts, 2)
    simulation.numbers(60)
    numbers = simulation.numbers(40)
    assert set(numbers) == {2, 3}
    assert numbers.count(3) <= 5, "a probe now and then"


@pytest.mark.parametrize("num_accepted", [0, 1, 3])
def test_no_number_is_final(num_accepted: int) -> None:
    simulation = adaptive()
    simulation.propose_s_per_token = 0.004
    simulation.num_accepted_of = lambda num_drafts: min(num_drafts, num_accepted)
    simulation.numbers(200)
    assert max(simulation.numbers(20)) <= num_accepted + 1
    simulation.num_accepted_of = lambda num_drafts: num_drafts
    simulation.numbers(300)
    assert min(simulation.numbers(20)) >= MAX_DRAFTS - 1


def test_a_new_sequence_begins_with_what_others_have_seen() -> None:
    shared = experience()
    hopeless = adaptive(shared)
    hopeless.num_accepted_of = lambda num_drafts: 0
    hopeless.numbers(200)
    assert adaptive(shared).round().num_speculative_tokens == 0
    assert adaptive().round().num_speculative_tokens > 3


def test_a_maximum_is_never_exceeded() -> None:
    assert max(adaptive(most=2).numbers(30)) == 2


def test_the_first_round_asks_for_one_token_only() -> None:
    assert adaptive().round().max_new_tokens == 1


@pytest.mark.parametrize("failure", ["timeout", "lost"])
def test_a_draft_that_misses_is_left_alone_for_longer_and_longer(failure: str) -> None:
    simulation = Simulation(ExactSpeculation(experience(), 4))
    simulation.round()
    simulation.failure = failure
    plans = [simulation.round() for _ in range(3 * (MAX_MISSES + 1))]
    pauses = [plan.max_new_tokens for plan in plans if not plan.num_speculative_tokens]
    assert [plan.num_speculative_tokens for plan in plans] == 3 * [*[4] * MAX_MISSES, 0]
    assert pauses == [FIRST_PAUSE_TOKENS, 2 * FIRST_PAUSE_TOKENS, 4 * FIRST_PAUSE_TOKENS]


def test_a_draft_that_answers_again_is_trusted_again() -> None:
    simulation = Simulation(ExactSpeculation(experience(), 4))
    simulation.round()
    simulation.failure = "timeout"
    simulation.numbers(MAX_MISSES + 1)
    simulation.failure = ""
    assert simulation.numbers(50) == [4] * 50


def test_an_exact_number_stays_exact_whatever_is_accepted() -> None:
    simulation = Simulation(ExactSpeculation(experience(), 4))
    simulation.num_accepted_of = lambda num_drafts: 0
    assert simulation.numbers(100) == [4] * 100
    assert simulation.plans[-1].propose_timeout_s >= EXACT_TIMEOUT_S


def test_plain_decoding_goes_on_to_the_end_in_one_round() -> None:
    plan = PlainDecoding().plan(sequence := new_sequence())
    assert (plan.num_speculative_tokens, plan.max_new_tokens) == (0, sequence.num_left)


def test_a_proposal_may_take_twice_the_usual_and_no_longer_than_a_plain_pass() -> None:
    simulation = adaptive(most=3)
    simulation.propose_s_per_token = 0.004
    simulation.numbers(30)
    assert simulation.round().propose_timeout_s == pytest.approx(0.021, rel=0.1)  # a plain pass


def test_drafts_behind_the_first_rejected_one_say_nothing() -> None:
    acceptance = AcceptanceRates()
    acceptance.record(range(-1, 4), range(1), decay=1.0)
    assert acceptance.tried == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert acceptance.accepted == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert acceptance.rate(0, prior=0.5, prior_weight=1.0) == 0.75
    assert acceptance.rate(4, prior=0.5, prior_weight=1.0) == 0.5


def test_in_a_tree_a_draft_counts_as_tried_where_its_parent_was_accepted() -> None:
    acceptance = AcceptanceRates()
    acceptance.record((-1, -1, 0, 1, 3), path=[1], decay=1.0)
    assert acceptance.tried == [1.0, 1.0, 0.0, 1.0, 0.0]
    assert acceptance.accepted == [0.0, 1.0, 0.0, 0.0, 0.0]
    assert [acceptance.parent(place) for place in (2, 3, 9)] == [0, 1, None]


def test_of_a_tree_as_much_is_asked_for_as_pays() -> None:
    """Two siblings are right half of the time each; what else there is never is."""
    speculation, sequence = AdaptiveSpeculation(experience(), MAX_DRAFTS), new_sequence()
    sequence.commit(8, [9])
    numbers = []
    for index in range(100):
        number = speculation.plan(sequence).num_speculative_tokens
        numbers.append(number)
        drafts = Drafts(range(number), (-1, -1, 0, 0, 1, 1, 2)[:number])
        said = index % 2
        is_accepted = said in drafts.token_ids
        token_ids = (said, 9) if is_accepted else (said,)
        committed = Committed(
            token_ids=sequence.commit(len(sequence.log), token_ids),
            num_draft_tokens=number,
            num_accepted_tokens=int(is_accepted),
            timing=RoundTiming(0, (21 + number) * 1000, 1 + number, pass_sequences=1),
            elapsed_s=0.021,
            propose=ProposeOutcome(drafts, 0.001 * number),
            since_last_s=0.021,
        )
        speculation.observe(sequence, committed)
    assert set(numbers[40:]) == {2, 3}
    assert numbers[40:].count(3) <= 6, "a probe now and then"


@pytest.mark.parametrize(
    ("rows", "expected_ms"), [(1, 21.0), (3, 23.0), (6, 26.0), (16, 36.0), (24, 44.0)]
)
def test_times_between_and_beyond_those_measured_are_drawn_as_a_line(
    rows: int, expected_ms: float
) -> None:
    assert CostModel(COSTS).pass_s(rows, 400) * 1000 == pytest.approx(expected_ms)


def test_the_nearest_context_counts() -> None:
    costs = CostModel([PassCost(1, 256, 10.0), PassCost(1, 2048, 30.0)])
    assert costs.pass_s(1, 300) == 0.01
    assert costs.pass_s(1, 5000) == 0.03


def test_a_context_that_was_not_measured_to_the_end_is_left_out() -> None:
    whole = [PassCost(rows, 256, 10.0 + rows) for rows in (1, 4, 8)]
    costs = CostModel([*whole, PassCost(1, 1024, 50.0)])
    assert [costs.pass_s(rows, 1024) for rows in (1, 4, 8)] == [0.011, 0.014, 0.018]


def test_a_machine_slower_than_its_table_is_noticed() -> None:
    costs = CostModel(COSTS)
    for _ in range(200):
        costs.record_pass(4, 512, 2 * 0.024)
    assert costs.pass_s(1, 512) == pytest.approx(0.042, rel=0.01)
