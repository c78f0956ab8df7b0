"""What proposals cost: the way there and back once, and a step for each draft."""

import pytest

from coordinator.pass_costs import CostModel
from paceline.rounds import RoundTiming


def test_the_way_is_paid_once_and_a_step_for_each_draft() -> None:
    costs = CostModel(())
    assert (costs.step_s, costs.propose_s(3)) == (0.0, 0.0)
    for num_steps in (1, 2, 3, 4):
        timing = RoundTiming(compute_us=2000 * num_steps, num_steps=num_steps)
        # One step fewer than drafts: the last step found nothing to be sure of.
        costs.record_propose(num_steps - 1, 0.003 + 0.002 * num_steps, timing)
    assert costs.step_s == pytest.approx(0.002)
    assert costs.propose_s(1) == pytest.approx(0.005)
    assert costs.propose_s(5) == pytest.approx(0.013)
    assert costs.propose_s(0) == 0.0


def test_a_first_step_that_takes_longer_is_no_measure_of_the_others() -> None:
    costs = CostModel(())
    for num_steps in (1, 3, 2, 1, 4):
        timing = RoundTiming(compute_us=2000 + 500 * num_steps, num_steps=num_steps)
        costs.record_propose(num_steps, 0.003 + 0.0005 * num_steps, timing)
    assert costs.step_s == pytest.approx(0.0005)
    assert costs.propose_s(4) == pytest.approx(0.005)


def test_copies_take_no_step() -> None:
    costs = CostModel(())
    costs.record_propose(3, 0.006, RoundTiming(compute_us=4000, num_steps=2))
    for _ in range(5):
        costs.record_propose(7, 0.001, RoundTiming(compute_us=50))
    assert costs.step_s == pytest.approx(0.002)
    assert costs.propose_s(1) == pytest.approx(0.003)


def test_a_draft_that_does_not_answer_is_paid_by_the_draft() -> None:
    costs = CostModel(())
    costs.record_propose(4, 0.02, RoundTiming())
    costs.record_propose(0, 0.5, RoundTiming())
    assert costs.step_s == pytest.approx(0.005)
    assert costs.propose_s(2) == pytest.approx(0.01)


def test_no_draft_can_claim_more_time_than_has_passed() -> None:
    costs = CostModel(())
    costs.record_propose(1, 0.01, RoundTiming(compute_us=4_000_000_000, num_steps=1))
    assert costs.propose_s(1) == pytest.approx(0.01)
