"""Drafts out of a prediction: where they come from, and that they change nothing."""

from array import array
from collections.abc import Sequence as Items
from dataclasses import replace

import pytest
from fakes import FaultyConnection, FixedWorkers
from hypothesis import given
from hypothesis import strategies as st
from lossless_runs import LAW, LIMITS, PROMPT, SEEDED, VOCAB_SIZE, draft, new_sequence, target
from plain_text import plain_text
from virtual_time import run_virtually

from coordinator.decode_loop import Committed, decode
from coordinator.draft_experience import SharedExperience
from coordinator.pass_costs import CostModel
from coordinator.prediction import MAX_PLACES, NEARBY, PredictedSpeculation, Prediction
from coordinator.sequence import Sequence
from coordinator.speculation import (
    AdaptiveSpeculation,
    ExactSpeculation,
    PlainDecoding,
)
from draft_service.drafters.draft_model import ModelDrafter
from paceline.engine.table_model import TableModel
from paceline.rounds import AcceptanceRule, PassCost, SequenceSettings
from paceline.token_log import TokenLog

PREDICTED = [*range(100, 130)]


def places(prediction: Items[int], answer: Items[int], num_wanted: int = 3) -> list[list[int]]:
    """The drafts behind each token of an answer."""
    found = Prediction(prediction)
    sequence = Sequence(SequenceSettings(max_length=10_000), TokenLog.of([1, 2]), 2)
    drafts = []
    for token_id in answer:
        drafts.append(list(found.drafts(sequence, num_wanted).token_ids))
        sequence.log.token_ids.append(token_id)
    return [*drafts, list(found.drafts(sequence, num_wanted).token_ids)]


def test_the_drafts_are_what_follows_in_the_prediction_up_to_its_end() -> None:
    assert places([7, 8, 9, 7], [7, 8, 9, 7, 7]) == [
        [7, 8, 9],
        [8, 9, 7],
        [9, 7],
        [7],
        [],
        [],
    ]


def test_tokens_committed_together_are_followed_together() -> None:
    prediction = Prediction(PREDICTED)
    sequence = Sequence(SequenceSettings(max_length=100), TokenLog.of([1]), 1)
    sequence.log.token_ids.extend(PREDICTED[:7])
    assert list(prediction.drafts(sequence, 2).token_ids) == PREDICTED[7:9]
    sequence.log.token_ids.extend([*PREDICTED[7:10], 5, *PREDICTED[11:14]])
    assert list(prediction.drafts(sequence, 2).token_ids) == PREDICTED[14:16]
    assert prediction.num_astray == 0


@pytest.mark.parametrize("num_left_out", range(NEARBY))
def test_one_token_finds_a_place_close_behind(num_left_out: int) -> None:
    answer = [*PREDICTED[:5], 1, PREDICTED[5 + num_left_out]]
    assert places(PREDICTED, answer)[-2:] == [[], PREDICTED[6 + num_left_out :][:3]]


@pytest.mark.parametrize("place", [0, 1, 15, 20])
def test_three_tokens_find_a_place_anywhere(place: int) -> None:
    answer = [*PREDICTED[:5], 1, *PREDICTED[place : place + 3]]
    *others, before, last = places(PREDICTED, answer)
    assert last == PREDICTED[place + 3 :][:3]
    assert before == []
    assert others[5] == PREDICTED[5:8]


def test_insertions_and_replacements_of_any_length_are_got_over() -> None:
    for strangers in ([1], [1, 2], [1] * 50):
        for num_left_out in (0, 1, 3):
            rest = PREDICTED[5 + num_left_out :]
            drafts = places(PREDICTED, [*PREDICTED[:5], *strangers, *rest])
            assert drafts[-len(rest)] == rest[1:4]


def test_the_longest_match_wins_and_of_equal_ones_the_nearest_ahead() -> None:
    far = [*range(200, 210)]
    prediction = [1, 2, 3, *far, 5, 6, 7, 50, *far, 5, 6, 7, 70, *far, 4, 5, 6, 7, 80]
    assert places(prediction, [1, 2, 3, 9, 5, 6, 7])[-1][0] == 50
    assert places(prediction, [1, 2, 3, 4, 5, 6, 7])[-1][0] == 80
    assert places(prediction, [1, 2, 3, 4, 5, 6, 7, 80, 9, 1, 2, 3])[-1][0] == 200
    assert places(prediction, [1, 2, 3, 4, 5, 6, 7, 80, 9, 5, 6, 7])[-1][0] == 80


def test_a_prediction_without_end_is_searched_within_bounds() -> None:
    class Counting(Prediction):
        num_looked_at = 0

        def _match_length(self, place: int, answer: "array[int]") -> int:
            self.num_looked_at += 1
            return super()._match_length(place, answer)

    prediction = Counting([5, 6, 7] * 100_000)
    sequence = Sequence(SequenceSettings(max_length=100), TokenLog.of([1]), 1)
    sequence.log.token_ids.extend([9, 5, 6, 7])
    assert list(prediction.drafts(sequence, 2).token_ids) == [5, 6]
    assert 0 < prediction.num_looked_at <= MAX_PLACES + NEARBY + 1


def test_an_answer_of_its_own_gets_no_drafts() -> None:
    *first, last = places(PREDICTED, [*range(40)])
    assert first[0] == PREDICTED[:3]
    assert not any(first[1:]) and not last


@given(st.lists(st.integers(0, 4), max_size=40), st.lists(st.integers(0, 4), max_size=40))
def test_drafts_are_always_a_piece_of_the_prediction(
    prediction: list[int], answer: list[int]
) -> None:
    for drafts in places(prediction, answer):
        pieces = [prediction[i : i + len(drafts)] for i in range(len(prediction) + 1)]
        assert drafts in pieces


# Through the real loop, target and draft.

MAX_DRAFTS = LIMITS.max_speculative_tokens
COSTS = CostModel([PassCost(rows, 1, 10 + 0.1 * rows) for rows in (1, 17)])


def speculation(
    prediction: Items[int], number: int | None = None, own: int = 3
) -> PredictedSpeculation:
    shared = SharedExperience(COSTS)
    predicted = (
        ExactSpeculation(shared, number) if number else AdaptiveSpeculation(shared, MAX_DRAFTS)
    )
    without = ExactSpeculation(SharedExperience(COSTS), own) if own else PlainDecoding()
    return PredictedSpeculation(Prediction(prediction), predicted, without)


def rounds_of(
    prediction: Items[int], settings: SequenceSettings = SEEDED, number: int | None = None
) -> tuple[list[int], list[Committed]]:
    """The answer, and the passes that made it."""

    async def run() -> tuple[list[int], list[Committed]]:
        sequence = new_sequence(settings)
        drafter = draft(lambda: ModelDrafter(TableModel(replace(LAW, disagreement=0.4))))
        workers = FixedWorkers([FaultyConnection(target(LAW))], [FaultyConnection(drafter)])
        passes = [p async for p in decode(sequence, workers, speculation(prediction, number))]
        return list(sequence.log.token_ids[len(PROMPT) :]), passes

    return run_virtually(run())


@given(
    st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=30),
    st.sampled_from([0.0, 1.0]),
    st.integers(0, 20),
    st.integers(0, 3),
)
def test_whatever_is_predicted_the_answer_is_the_targets_own(
    strangers: list[int], temperature: float, start: int, num_left_out: int
) -> None:
    settings = replace(SEEDED, max_length=len(PROMPT) + 24, temperature=temperature)
    own = plain_text(LAW, PROMPT, settings)
    prediction = [*own[:start], *strangers, *own[start + num_left_out :]]
    assert rounds_of(prediction, settings)[0] == own


@pytest.mark.parametrize("number", [1, 4, MAX_DRAFTS])
def test_a_right_prediction_is_accepted_whole(number: int) -> None:
    settings = replace(SEEDED, max_length=len(PROMPT) + 40)
    own = plain_text(LAW, PROMPT, settings)
    said, passes = rounds_of(own, settings, number)
    assert said == own
    predicted = [p for p in passes if p.propose is not None and p.propose.is_predicted]
    assert all(p.num_accepted_tokens == p.num_draft_tokens for p in predicted)
    assert len(passes) == 1 + -(-39 // (number + 1))
    assert predicted == passes[1:]


def test_where_the_answer_is_elsewhere_the_services_own_draft_is_asked() -> None:
    settings = replace(SEEDED, max_length=len(PROMPT) + 40)
    own = plain_text(LAW, PROMPT, settings)
    said, passes = rounds_of([*own[:20], 0, 0, 0], settings, MAX_DRAFTS)
    assert said == own
    asked = [p.propose.is_predicted for p in passes if p.propose is not None]
    assert asked[0] and not asked[-1]
    assert any(p.num_accepted_tokens for p in passes if p.propose and not p.propose.is_predicted)


@pytest.mark.parametrize("rule", [AcceptanceRule.REJECTION, AcceptanceRule.BLOCK])
def test_a_prediction_is_a_certain_draft_to_the_other_rules(rule: AcceptanceRule) -> None:
    settings = replace(SEEDED, acceptance_rule=rule, temperature=0.2)
    said, passes = rounds_of(plain_text(LAW, PROMPT, SEEDED), settings, 4)
    assert len(said) == 16
    assert any(p.num_draft_tokens for p in passes)
