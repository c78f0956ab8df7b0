"""How trees of drafts grow: what is run next, what is proposed, and in which order."""

import heapq
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import ways

from draft_service.draft_tree import (
    MAX_EXPANDED,
    RANK_SHARES,
    ROOT,
    DraftTree,
    DynamicTree,
    StaticTree,
    static_choices,
)
from paceline.engine.sampling import RankedToken
from paceline.rounds import Drafts
from paceline.token_tree import tree_fault

VOCAB_SIZE = 7


def law(way: Sequence[int], seed: int = 0) -> list[RankedToken]:
    """What may follow, the likeliest first, unrelated for every two ways."""
    shares = np.random.default_rng([seed, *way]).dirichlet(np.full(VOCAB_SIZE, 0.4))
    ranked = sorted(enumerate(shares.tolist()), key=lambda item: (-item[1], item[0]))
    return [RankedToken(token_id, share) for token_id, share in ranked]


def grown(tree: DraftTree, seed: int = 0) -> tuple[Drafts, list[int]]:
    """The drafts, and how many tokens each step has run."""
    widths = []
    while tree.running:
        widths.append(len(tree.running))
        said = [tree.token_ids(tree.way(number)) for number in tree.running]
        tree.grow([law(way, seed)[: tree.width] for way in said])
    assert ROOT not in tree.ran
    return tree.drafts(), widths


def likelihood(way: Sequence[int], seed: int = 0) -> float:
    found = 1.0
    for index, token_id in enumerate(way):
        found *= next(t.share for t in law(way[:index], seed) if t.token_id == token_id)
    return found


def likeliest(number: int, seed: int) -> list[list[int]]:
    """The likeliest ways of all, looked at one after the other."""
    found: list[list[int]] = []
    ahead = [(-token.share, [token.token_id]) for token in law((), seed)[:MAX_EXPANDED]]
    heapq.heapify(ahead)
    while len(found) < number:
        _, way = heapq.heappop(ahead)
        found.append(way)
        for token in law(way, seed)[:MAX_EXPANDED]:
            longer = [*way, token.token_id]
            heapq.heappush(ahead, (-likelihood(longer, seed), longer))
    return found


@given(st.integers(1, MAX_EXPANDED), st.integers(0, 99))
def test_a_dynamic_tree_is_made_of_the_most_confident_tokens_of_all(number: int, seed: int) -> None:
    drafts, _ = grown(DynamicTree(number), seed)
    assert ways(drafts) == likeliest(number, seed)


@given(st.integers(1, 24), st.integers(0, 99))
def test_a_dynamic_tree_stands_in_the_order_of_confidence_parents_first(
    number: int, seed: int
) -> None:
    drafts, widths = grown(DynamicTree(number), seed)
    assert tree_fault(drafts) == ""
    assert len(drafts.token_ids) == number
    found = [likelihood(way, seed) for way in ways(drafts)]
    assert found == pytest.approx(sorted(found, reverse=True))
    assert widths[0] == 1 and max(widths) <= MAX_EXPANDED
    assert len(widths) <= number + 1


def test_where_a_head_is_sure_a_dynamic_tree_is_a_chain_and_where_not_it_is_flat() -> None:
    sure, unsure = DynamicTree(3), DynamicTree(3)
    while sure.running:
        sure.grow([[RankedToken(1, 0.97), RankedToken(2, 0.01)] for _ in sure.running])
    assert sure.drafts() == Drafts((1, 1, 1), (-1, 0, 1), confidences=(0.97,) * 3)
    while unsure.running:
        unsure.grow([[RankedToken(id, 0.2) for id in range(4)] for _ in unsure.running])
    assert unsure.drafts() == Drafts((0, 1, 2), (-1, -1, -1), confidences=(0.2,) * 3)


@pytest.mark.parametrize("tree", [DynamicTree(5, (3,)), StaticTree(static_choices(5), (3,))])
def test_nothing_grows_behind_a_stop_token(tree: DraftTree) -> None:
    while tree.running:
        tree.grow([[RankedToken(3, 0.9), RankedToken(4, 0.05)] for _ in tree.running])
    drafts = tree.drafts()
    assert 3 in drafts.token_ids
    assert all(p < 0 or drafts.token_ids[p] != 3 for p in drafts.parents)


@given(st.sampled_from([0.01, 0.1, 0.3, 0.6]), st.integers(0, 99))
def test_what_is_less_likely_than_wanted_is_left_out(least: float, seed: int) -> None:
    for all_of_it, wanted in (
        (DynamicTree(9), DynamicTree(9, (), least)),
        (StaticTree(static_choices(9)), StaticTree(static_choices(9), (), least)),
    ):
        expected = [w for w in ways(grown(all_of_it, seed)[0]) if likelihood(w, seed) >= least]
        drafts, _ = grown(wanted, seed)
        assert ways(drafts) == expected
        said = [likelihood(way, seed) / likelihood(way[:-1], seed) for way in expected]
        assert drafts.confidences == pytest.approx(said)


@pytest.mark.parametrize("tree", [DynamicTree(5), StaticTree(static_choices(5))])
def test_a_tree_of_which_nothing_is_said_has_no_drafts(tree: DraftTree) -> None:
    tree.grow([[]])
    assert not tree.running
    assert tree.drafts() == Drafts((), ())


@given(st.integers(0, 30))
def test_a_static_tree_has_its_shape_and_the_tokens_of_their_ranks(number: int) -> None:
    choices = static_choices(number)
    drafts, widths = grown(StaticTree(choices))
    assert tree_fault(drafts) == ""
    ranks = [
        tuple([t.token_id for t in law(way[:i])].index(way[i]) for i in range(len(way)))
        for way in ways(drafts)
    ]
    assert ranks == choices
    depth = max(map(len, choices), default=0)
    assert len(widths) == max(depth, 1), "the last level is not run"


def test_a_static_tree_may_be_any_list_of_choices() -> None:
    choices = [(0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (0, 0, 0)]
    drafts, _ = grown(StaticTree(choices))
    assert drafts.parents == (-1, -1, -1, 0, 0, 2, 3)


def test_what_is_not_said_is_left_out_with_what_stands_behind_it() -> None:
    tree = StaticTree([(0,), (1,), (1, 0), (0, 0)])
    tree.grow([[RankedToken(5, 0.5)]])
    tree.grow([[RankedToken(6, 0.5)]])
    assert tree.drafts() == Drafts((5, 6), (-1, 0), confidences=(0.5, 0.5))


def test_the_shape_of_a_static_tree_is_that_of_the_likeliest_places() -> None:
    choices = static_choices(60)
    chances = [np.prod([RANK_SHARES[rank] for rank in choice]) for choice in choices]
    assert chances == sorted(chances, reverse=True)
    assert len(set(choices)) == 60
    assert choices[:4] == [(0,), (0, 0), (0, 0, 0), (1,)]
    assert static_choices(7, max_depth=1) == [(0,), (1,), (2,), (3,)]
