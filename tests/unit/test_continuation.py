"""What is likely to follow, against the formula taken literally, one order after the other."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service.drafters.continuation import (
    FIRST_WEIGHT,
    MAX_MATCH,
    WEIGHT,
    Match,
    likely_next,
    match_length,
)

MATCHES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, MAX_MATCH)), min_size=1, max_size=9)


def matches(found: list[tuple[int, int]]) -> list[Match]:
    """Pairs of the token that followed and the length of the match."""
    return [Match(array("I", [token]), 0, length) for token, length in found]


def slow_chances(found: list[tuple[int, int]]) -> dict[int, float]:
    chances = dict.fromkeys((token for token, _ in found), 0.0)
    for order in range(1, MAX_MATCH + 1):
        places = [token for token, length in found if length >= order]
        weight = FIRST_WEIGHT if order == 1 else WEIGHT
        if places:
            chances = {
                token: (places.count(token) + weight * chance) / (len(places) + weight)
                for token, chance in chances.items()
            }
    return chances


@given(MATCHES)
def test_the_estimate_is_that_of_the_formula(found: list[tuple[int, int]]) -> None:
    chances = slow_chances(found)
    token_id, confidence = likely_next(matches(found))
    assert confidence == pytest.approx(max(chances.values()))
    assert chances[token_id] == pytest.approx(confidence)


@given(MATCHES)
def test_it_is_a_probability(found: list[tuple[int, int]]) -> None:
    assert 0 < likely_next(matches(found))[1] < 1


def test_a_longer_match_makes_surer() -> None:
    confidences = [likely_next(matches([(5, length)]))[1] for length in range(1, MAX_MATCH + 1)]
    assert confidences == sorted(set(confidences))
    assert confidences[0] < 0.2 and confidences[-1] > 0.95


def test_places_that_agree_make_surer_and_places_that_differ_make_unsure() -> None:
    alone = likely_next(matches([(5, 3)]))[1]
    assert likely_next(matches([(5, 3)] * 4))[1] > alone
    assert likely_next(matches([(5, 3), (6, 3)]))[1] < alone


def test_the_longest_match_beats_several_shorter_ones() -> None:
    assert likely_next(matches([(6, 1), (6, 1), (5, 8)]))[0] == 5


def test_of_equally_likely_tokens_the_first_wins() -> None:
    assert likely_next(matches([(6, 2), (5, 2)]))[0] == 6


@pytest.mark.parametrize(
    ("text", "place", "tail", "expected"),
    [
        ([1, 2, 3, 9], 3, [1, 2, 3], 3),
        ([1, 2, 3, 9], 3, [7, 2, 3], 2),
        ([1, 2, 3, 9], 3, [3], 1),
        ([5] * 40, 30, [5] * 40, MAX_MATCH),
        ([1, 2], 0, [1, 2], 0),
    ],
)
def test_the_length_of_a_match(text: list[int], place: int, tail: list[int], expected: int) -> None:
    assert match_length(array("I", text), place, array("I", tail)) == expected
