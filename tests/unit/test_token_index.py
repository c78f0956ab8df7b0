"""Places of n-grams against a search that looks everywhere; work and memory by counts."""

from array import array
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from draft_service.drafters.token_index import TokenIndex

# Of few tokens many n-grams are equal; the largest ids fill all of their 32 bits.
TOKENS = st.sampled_from([0, 1, 2, 2**32 - 1])
TEXTS = st.lists(TOKENS, max_size=30)


def slow_places(text: list[int], tail: list[int], orders: tuple[int, ...], most: int) -> list[int]:
    """Look at every place, newest first, once for each order."""
    found: list[int] = []
    for order in orders:
        pattern = tail[-order:]
        behind = [
            place
            for place in range(len(text) - 1, order - 1, -1)
            if len(pattern) == order and text[place - order : place] == pattern
        ]
        found += [place for place in behind[:most] if place not in found]
    return found


def index_of(text: list[int], orders: tuple[int, ...] = (3, 1)) -> TokenIndex:
    index = TokenIndex(orders)
    index.extend(text)
    return index


@given(TEXTS, TEXTS, st.sampled_from([(3, 1), (1,), (2,), (4, 2, 1)]), st.integers(1, 5))
def test_places_are_those_that_a_slow_search_finds(
    text: list[int], tail: list[int], orders: tuple[int, ...], most: int
) -> None:
    index = index_of(text, orders)
    for last in (text, text + tail, tail):
        expected = slow_places(text, last, orders, most)
        assert list(index.places(array("I", last), most)) == expected


class GrowingAndShrinking(RuleBasedStateMachine):
    """However it came to be, an index is that of its text."""

    def __init__(self) -> None:
        super().__init__()
        self.index = TokenIndex((2, 1))
        self.text: list[int] = []

    @rule(token_ids=TEXTS)
    def extend(self, token_ids: list[int]) -> None:
        self.index.extend(token_ids)
        self.text += token_ids

    @rule(length=st.integers(0, 40))
    def truncate(self, length: int) -> None:
        self.index.truncate(length)
        del self.text[length:]

    @rule(token_ids=TEXTS, most=st.integers(1, 8))
    def follow(self, token_ids: list[int], most: int) -> None:
        for _ in range(len(token_ids) + 2):
            if self.index.follow(array("I", token_ids), most):
                break
        self.text = list(token_ids)

    @invariant()
    def equals_one_made_at_once(self) -> None:
        fresh = index_of(self.text, (2, 1))
        assert self.index.token_ids == fresh.token_ids
        for order, links in enumerate(fresh._links):
            assert self.index._links[order]._newest == links._newest
            assert self.index._links[order]._before == links._before


TestGrowingAndShrinking = GrowingAndShrinking.TestCase


@pytest.mark.parametrize("length", [100, 10_000])
def test_a_search_looks_at_no_more_places_than_it_was_told_to(length: int) -> None:
    index = index_of([7] * length, (1,))
    steps = CountingArray(index._links[0]._before)
    index._links[0]._before = steps
    assert len(list(index.places(array("I", [7]), 5))) == 5
    assert steps.num_read <= 6


class CountingArray(array):  # type: ignore[type-arg]
    """Counts the places that are looked at."""

    num_read = 0

    def __new__(cls, values: "array[int]") -> "CountingArray":
        return super().__new__(cls, "I", values)

    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        self.num_read += 1
        return super().__getitem__(index)


def test_a_step_indexes_no_more_than_it_was_told_to() -> None:
    index, text = TokenIndex((3, 1)), array("I", range(100))
    lengths = []
    while not index.follow(text, 30):
        lengths.append(len(index))
    assert lengths == [30, 60, 90]
    assert len(index) == 100


def test_much_text_that_is_taken_back_is_dropped_at_once() -> None:
    index = index_of(list(range(100)))
    assert not index.follow(array("I", range(50)), 20)
    assert list(index.token_ids) == list(range(20)), "begun anew"


def test_there_are_no_more_links_than_tokens_and_orders() -> None:
    index = index_of(list(range(1000)), (3, 1))
    assert [len(links._before) for links in index._links] == [1000, 1000]
    assert [len(links._newest) for links in index._links] == [998, 1000]
    index.truncate(0)
    assert [len(links._newest) for links in index._links] == [0, 0]
    assert list(islice(index.places(array("I", [5]), 3), 3)) == []
