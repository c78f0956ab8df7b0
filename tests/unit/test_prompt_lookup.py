"""Prompt lookup against a search that looks at every place, one token at a time."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service.drafters.prompt_lookup import (
    MAX_MATCH,
    MIN_MATCH,
    PromptLookupDrafter,
    find_continuation,
)
from draft_service.proposer import Proposal
from paceline.engine.sequences import EngineSequence
from paceline.rounds import SequenceSettings
from paceline.token_log import TokenLog

# Ids of which every byte looks like one of another id, so that bytes match where tokens do not.
LOOK_ALIKES = [0, 1, 256, 65536, 16777216, 257]


def slow_search(token_ids: list[int]) -> int | None:
    """The longest match wins, and of equally long ones the latest."""
    for length in range(MAX_MATCH, MIN_MATCH - 1, -1):
        pattern = token_ids[len(token_ids) - length :]
        for start in range(len(token_ids) - length - 1, -1, -1):
            if len(pattern) == length and token_ids[start : start + length] == pattern:
                return start + length
    return None


def drafts(
    token_ids: list[int], num_wanted: int, stop_token_ids: tuple[int, ...] = ()
) -> list[int]:
    settings = SequenceSettings(max_length=1000, stop_token_ids=stop_token_ids)
    sequence = EngineSequence("a", settings, 1, TokenLog.of(token_ids))
    proposal = Proposal(sequence, num_wanted)
    PromptLookupDrafter().extend([proposal])
    assert proposal.is_done
    assert list(sequence.log.token_ids) == token_ids, "the sequence itself is left alone"
    return proposal.token_ids


@given(st.lists(st.sampled_from(LOOK_ALIKES), max_size=24))
def test_the_place_is_the_one_that_a_slow_search_finds(token_ids: list[int]) -> None:
    assert find_continuation(array("I", token_ids).tobytes()) == slow_search(token_ids)


@given(st.lists(st.sampled_from([0, 1]), max_size=24), st.integers(1, 9))
def test_drafts_go_on_as_the_text_did(token_ids: list[int], num_wanted: int) -> None:
    start = slow_search(token_ids)
    expected = list(token_ids)
    if start is not None:
        for index in range(start, start + num_wanted):
            expected.append(expected[index])
    assert drafts(token_ids, num_wanted) == expected[len(token_ids) :]


@pytest.mark.parametrize("length", range(MIN_MATCH + 1))
def test_a_text_too_short_for_a_match_gives_nothing(length: int) -> None:
    assert drafts([7] * length, 4) == []


def test_a_single_equal_token_is_no_match() -> None:
    assert drafts([1, 2, 3, 4, 1], 4) == []
    assert drafts([1, 2, 3, 4, 1, 2], 2) == [3, 4]


def test_the_longest_match_beats_a_later_one() -> None:
    text = [1, 2, 3, 5, 9, 2, 3, 6, 9, 1, 2, 3]
    assert drafts(text, 1) == [5]


def test_of_equally_long_matches_the_latest_wins() -> None:
    assert drafts([2, 3, 5, 9, 2, 3, 6, 9, 2, 3], 1) == [6]


def test_a_loop_goes_on_for_as_long_as_asked() -> None:
    assert drafts([1, 2, 3] * 2, 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_nothing_is_proposed_behind_a_stop_token() -> None:
    assert drafts([1, 2, 3, 4, 5, 1, 2], 5, stop_token_ids=(4,)) == [3, 4]
