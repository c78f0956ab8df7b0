"""The part that all drafters share: spans, numbers, times, failures."""

from dataclasses import replace
from itertools import count

import pytest
from fakes import ScriptedDrafter

from draft_service.proposer import Proposal, Proposer
from paceline.engine.sequences import SequenceTable
from paceline.rounds import (
    ProposeResult,
    ProposeRound,
    RoundErrorReason,
    SequenceSettings,
    TokenSpan,
    WorkerLoad,
)
from paceline.token_log import TokenLog

SETTINGS = SequenceSettings(max_length=20)


class CountingDrafter:
    """Proposes 1, 2, 3, ... one a step."""

    def __init__(self) -> None:
        self.table = SequenceTable()
        self.batches: list[int] = []

    def load(self, num_waiting: int) -> WorkerLoad:
        return WorkerLoad(num_sequences=len(self.table), num_waiting=num_waiting)

    def extend(self, proposals: list[Proposal]) -> None:
        self.batches.append(len(proposals))
        for proposal in proposals:
            proposal.add(len(proposal.token_ids) + 1)


def round_of(
    token_ids: list[int],
    num_speculative_tokens: int,
    sequence_id: str = "a",
    number: int = 1,
    settings: SequenceSettings = SETTINGS,
) -> ProposeRound:
    span = TokenLog.of(token_ids).span(0)
    return ProposeRound(sequence_id, number, span, num_speculative_tokens, settings)


def answers(proposer: Proposer) -> list[ProposeResult]:
    results: list[ProposeResult] = []
    while proposer.has_work:
        results += proposer.step() or []
    return results


@pytest.mark.parametrize(
    ("num_wanted", "num_prompt", "expected"),
    [(3, 4, 3), (9, 4, 6), (9, 17, 2), (1, 18, 1)],
    ids=["as asked", "the worker's most", "less than the room", "the target needs the last place"],
)
def test_the_number_of_drafts_is_what_was_asked_and_what_can_be_of_use(
    num_wanted: int, num_prompt: int, expected: int
) -> None:
    proposer = Proposer(CountingDrafter(), max_speculative_tokens=6)
    assert proposer.accept(round_of([7] * num_prompt, num_wanted)) is None
    (result,) = answers(proposer)
    assert list(result.drafts.token_ids) == list(range(1, expected + 1))


@pytest.mark.parametrize(("num_prompt", "num_wanted"), [(4, 0), (19, 3), (20, 3), (0, 3)])
def test_where_no_draft_can_be_of_use_the_answer_comes_at_once(
    num_prompt: int, num_wanted: int
) -> None:
    proposer = Proposer(CountingDrafter(), 6)
    answer = proposer.accept(round_of([7] * num_prompt, num_wanted, number=5))
    assert answer == ProposeResult("a", 5)
    assert not proposer.has_work


def test_all_that_wait_take_part_in_each_step() -> None:
    drafter = CountingDrafter()
    proposer = Proposer(drafter, 6)
    for sequence_id, num_wanted in (("a", 1), ("b", 3), ("c", 3)):
        assert proposer.accept(round_of([7], num_wanted, sequence_id)) is None
    assert [len(r.drafts.token_ids) for r in answers(proposer)] == [1, 3, 3]
    assert drafter.batches == [3, 2, 2]


def test_nothing_is_proposed_behind_a_stop_token() -> None:
    proposer = Proposer(CountingDrafter(), 6)
    settings = replace(SETTINGS, stop_token_ids=(2,))
    proposer.accept(round_of([7], 5, settings=settings))
    (result,) = answers(proposer)
    assert list(result.drafts.token_ids) == [1, 2]


def test_what_is_not_held_is_asked_for() -> None:
    proposer = Proposer(CountingDrafter(), 6)
    assert proposer.accept(ProposeRound("a", 4, TokenSpan(3, 5, ()), 2)) == ProposeResult(
        "a", 4, held=0
    )
    proposer.accept(round_of([7, 8], 1))
    late = ProposeRound("a", 6, TokenLog.of([7, 8, 9, 10]).span(3), 2)
    assert proposer.accept(late) == ProposeResult("a", 6, held=2)
    assert not proposer.has_work, "the round that was waiting is out of date"


def test_a_newer_round_replaces_the_waiting_one() -> None:
    proposer = Proposer(CountingDrafter(), 6)
    proposer.accept(round_of([7, 8], 4))
    proposer.step()
    proposer.accept(round_of([7, 8, 9], 2, number=2))
    (result,) = answers(proposer)
    assert (result.round, list(result.drafts.token_ids)) == (2, [1, 2])


def test_a_closed_sequence_is_gone_with_its_round() -> None:
    proposer = Proposer(CountingDrafter(), 6)
    proposer.accept(round_of([7], 2))
    assert proposer.is_waiting("a")
    assert proposer.load == WorkerLoad(num_sequences=1, num_waiting=1)
    proposer.close("a")
    assert not proposer.has_work
    assert proposer.load == WorkerLoad()


def test_a_failed_step_is_told_to_all_that_wait_and_forgets_everything() -> None:
    proposer = Proposer(ScriptedDrafter([]), 6)
    proposer.accept(round_of([7], 2, "idle"))
    answers(proposer)
    for sequence_id in "ab":
        proposer.accept(round_of([7], 2, sequence_id, number=3))
    failed = proposer.abandon("the drafter is out of order")
    assert [(r.sequence_id, r.round) for r in failed] == [("a", 3), ("b", 3)]
    for result in failed:
        assert result.error is not None
        assert result.error.reason is RoundErrorReason.INTERNAL
        assert result.error.message == "the drafter is out of order"
    assert proposer.load == WorkerLoad()


def test_times_are_told_in_microseconds() -> None:
    ticks = count(start=10, step=2)  # seconds at: arrival, start of the step, its end, ...
    proposer = Proposer(CountingDrafter(), 6, clock=lambda: next(ticks))
    proposer.accept(round_of([7], 2), waited_s=0.5)
    (result,) = answers(proposer)
    assert result.timing.queue_us == 2_500_000
    assert result.timing.compute_us == 6_000_000
    assert result.timing.pass_sequences == 1
