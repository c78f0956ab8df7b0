"""Trees of drafts: which are none, and that all ways through one lead to the same tokens."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import as_tree, trees, ways

from paceline.rounds import NO_DRAFTS, AcceptanceRule, Drafts, SequenceSettings, Support
from paceline.token_tree import (
    branches,
    depth_first,
    depths,
    is_chain,
    path_along,
    pruned,
    rule_fault,
    tree_fault,
)

TREES = trees(st.integers(0, 3), 20)
FORK = Drafts((1, 2), (-1, -1))


@pytest.mark.parametrize(
    ("drafts", "expected"),
    [
        (Drafts((1, 2, 3), (-1, 0)), "drafts.parents: has 2 entries for 3 tokens"),
        (Drafts((1,), (-1, 0)), "drafts.parents: has 2 entries for 1 tokens"),
        (Drafts((), (-1,)), "drafts.parents: has 1 entries for 0 tokens"),
        (Drafts((1, 2), (-1, 1)), r"drafts.parents\[1\]: is 1; .* from 0 to 0, or -1"),
        (Drafts((1, 2), (1, -1)), r"drafts.parents\[0\]: is 1"),
        (Drafts((1, 2), (-1, -2)), r"drafts.parents\[1\]: is -2"),
        (Drafts((1, 2), (-1, 2**31 - 1)), r"drafts.parents\[1\]: is 2147483647"),
        (
            Drafts((7, 1, 7), (-1, -1, -1)),
            r"drafts.token_ids\[2\]: 7 follows the same token as drafts.token_ids\[0\]",
        ),
        (
            replace(FORK, supports=(Support((1,), (1.0,)),) * 2),
            "drafts.supports: is set for a tree; expected it with a chain only",
        ),
    ],
)
def test_what_is_no_tree_is_told_in_a_sentence(drafts: Drafts, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        raise ValueError(tree_fault(drafts))


@pytest.mark.parametrize(
    "drafts",
    [
        NO_DRAFTS,
        FORK,
        Drafts((1, 1, 1)),
        Drafts((1, 1, 1), (-1, 0, 1)),
        Drafts((1, 2, 1), (-1, -1, 0)),
        Drafts((1, 2), (-1, 0), (Support((1,), (1.0,)),) * 2),
    ],
)
def test_chains_and_trees_have_no_fault(drafts: Drafts) -> None:
    assert tree_fault(drafts) == ""


@pytest.mark.parametrize("rule", [AcceptanceRule.REJECTION, AcceptanceRule.BLOCK])
def test_rules_that_need_the_law_of_a_draft_take_chains(rule: AcceptanceRule) -> None:
    settings = SequenceSettings(max_length=9, temperature=0.7, acceptance_rule=rule)
    assert rule_fault(FORK, settings) == (
        "drafts.parents: the drafts form a tree; expected a chain under the rule "
        f"{rule.name} at temperature 0.7."
    )
    assert rule_fault(Drafts((1, 2), (-1, 0)), settings) == ""
    assert rule_fault(FORK, replace(settings, temperature=0.0)) == ""
    assert rule_fault(FORK, replace(settings, acceptance_rule=AcceptanceRule.COUPLED)) == ""


@given(TREES)
def test_depth_first_it_says_the_same(drafts: Drafts) -> None:
    assert tree_fault(drafts) == ""
    ordered = depth_first(drafts)
    assert tree_fault(ordered) == ""
    assert sorted(ways(ordered)) == sorted(ways(drafts))
    assert depth_first(as_tree(ordered)) == ordered
    assert not ordered.parents or not is_chain(ordered.parents)


@given(TREES)
def test_branches_written_one_after_the_other_follow_their_own_way(drafts: Drafts) -> None:
    ordered = as_tree(depth_first(drafts))
    places: list[int] = [99] * 20
    seen = 0
    for first, place, num_tokens in branches(ordered.parents):
        assert (first, num_tokens > 0) == (seen, True)
        seen += num_tokens
        places[place : place + num_tokens] = ordered.token_ids[first:seen]
        assert places[: place + num_tokens] == ways(ordered)[seen - 1]
    assert seen == len(ordered.token_ids)


def test_a_tree_in_another_order_has_no_branches() -> None:
    with pytest.raises(ValueError, match=r"\[-1, -1, 0\] is not depth-first at index 2"):
        [*branches([-1, -1, 0])]


@given(TREES, st.integers(0, 20))
def test_the_first_of_a_tree_are_a_tree(drafts: Drafts, number: int) -> None:
    head = Drafts(drafts.token_ids[:number], drafts.parents[:number])
    assert tree_fault(head) == ""
    assert pruned(drafts, lambda index: index < number) == head
    assert ways(head) == ways(drafts)[:number]


@given(TREES, st.sets(st.integers(0, 19)))
def test_what_is_left_out_takes_along_what_follows_it(drafts: Drafts, left_out: set[int]) -> None:
    kept = pruned(drafts, lambda index: index not in left_out)
    assert tree_fault(kept) == ""
    gone = [ways(drafts)[index] for index in left_out if index < len(drafts.token_ids)]
    assert ways(kept) == [
        way for way in ways(drafts) if not any(way[: len(other)] == other for other in gone)
    ]


@given(TREES, st.lists(st.integers(0, 3), max_size=6))
def test_the_path_along_tokens_is_the_longest_way_that_says_them(
    drafts: Drafts, token_ids: list[int]
) -> None:
    path = path_along(drafts, token_ids)
    said = [drafts.token_ids[index] for index in path]
    assert said == token_ids[: len(said)]
    assert token_ids[: len(said) + 1] not in ways(drafts) or len(said) == len(token_ids)
    assert depths(drafts.parents) == [len(way) for way in ways(drafts)]
    assert not path or depths(drafts.parents)[path[-1]] == len(path)


def test_the_path_along_a_chain_counts() -> None:
    assert path_along(Drafts((4, 4, 5)), [4, 4, 6]) == [0, 1]
