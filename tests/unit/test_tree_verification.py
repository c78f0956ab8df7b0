"""A tree of drafts brings what its best path brings, and never another text."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_text import plain_text
from sequence_owner import GREEDY, LAW, PROMPT, SEEDED, VOCAB_SIZE, Owner, new_verifier, widths
from trees import merged, trees

from paceline.rounds import AcceptanceRule, Drafts, RoundErrorReason, SequenceSettings, Support
from paceline.token_tree import depths
from target_service.round_checks import usable_drafts

TREES = trees(st.integers(0, VOCAB_SIZE - 1), 12)
BOTH = pytest.mark.parametrize("settings", [GREEDY, SEEDED], ids=["greedy", "seeded"])


def others(token_id: int, number: int = 3) -> list[int]:
    return [(token_id + 1 + i) % VOCAB_SIZE for i in range(number)]


def bushy(right: Sequence[int], num_wrong: int = 2, where: int = 1) -> Drafts:
    """A tree with these tokens as one path, and wrong ones beside each of them."""
    token_ids: list[int] = []
    parents: list[int] = []
    parent = -1
    for token_id in right:
        siblings = others(token_id, num_wrong)
        siblings.insert(where, token_id)
        token_ids += siblings
        parents += [parent] * len(siblings)
        parent = len(token_ids) - len(siblings) + where
    return Drafts(tuple(token_ids), tuple(parents))


@BOTH
@pytest.mark.parametrize("where", [0, 1, 2])
def test_the_path_that_the_target_takes_is_accepted_and_a_bonus_token_follows(
    settings: SequenceSettings, where: int
) -> None:
    owner = Owner(new_verifier(max_speculative_tokens=12), settings=settings)
    expected = owner.expected
    result = owner.ask(bushy(expected[:4], where=where))
    assert (result.num_draft_tokens, result.num_accepted_tokens) == (12, 4)
    assert owner.said == expected[:5]
    result = owner.ask(bushy(expected[5:8], where=where), start=len(owner.log))
    assert (result.num_draft_tokens, result.num_accepted_tokens) == (9, 3)
    assert owner.said == expected[:9]
    assert widths(owner.verifier) == [[len(PROMPT) + 12], [1 + 9]]


@BOTH
def test_where_no_branch_says_what_the_target_says_the_round_ends(
    settings: SequenceSettings,
) -> None:
    owner = Owner(new_verifier(), settings=settings)
    expected = owner.expected
    wrong = Drafts(tuple(others(expected[2])), (-1, -1, -1))
    result = owner.ask(merged(Drafts(expected[:2]), Drafts((*expected[:2], *wrong.token_ids))))
    assert result.num_accepted_tokens == 2
    assert owner.said == expected[:3]


def test_a_path_that_ends_in_a_leaf_is_followed_by_a_bonus_token() -> None:
    owner = Owner(new_verifier())
    expected = owner.expected
    result = owner.ask(merged(Drafts(expected[:1]), Drafts((*others(expected[0], 1), 1, 2, 3))))
    assert (result.num_draft_tokens, result.num_accepted_tokens) == (5, 1)
    assert owner.said == expected[:2]


def test_behind_a_tree_the_target_goes_on_alone() -> None:
    owner = Owner(new_verifier(max_speculative_tokens=9))
    owner.ask(bushy(owner.expected[:3]), max_new_tokens=8)
    assert owner.said == owner.expected[:8]
    assert widths(owner.verifier) == [[len(PROMPT) + 9], [1], [1], [1], [1]]


def test_a_tree_behind_a_prompt_in_chunks_says_the_same() -> None:
    prompt = [int(id) for id in np.random.default_rng(1).integers(0, VOCAB_SIZE, 150)]
    settings = replace(SEEDED, max_length=170)
    owner = Owner(new_verifier(33, 12), prompt, settings)
    owner.ask(bushy(owner.expected[:4]))
    assert owner.said == owner.expected[:5]
    assert sum(sum(width) for width in widths(owner.verifier)) == 150 + 12


@pytest.mark.parametrize("num_checked", [1, 2, 4, 5])
def test_more_than_the_worker_checks_are_trimmed_from_the_end(num_checked: int) -> None:
    owner = Owner(new_verifier(max_speculative_tokens=num_checked))
    result = owner.ask(bushy(owner.expected[:3], num_wrong=1, where=0))
    assert result.num_draft_tokens == num_checked
    assert result.num_accepted_tokens == -(-num_checked // 2)
    assert owner.said == owner.expected[: result.num_accepted_tokens + 1]


@given(TREES, st.integers(0, 12), st.integers(-1, 6))
def test_what_is_checked_is_a_tree_within_both_limits(
    drafts: Drafts, max_drafts: int, max_depth: int
) -> None:
    checked, known = usable_drafts(drafts, max_drafts, max_depth, VOCAB_SIZE)
    assert known == checked.token_ids
    num_fitting = sum(depth <= max_depth for depth in depths(drafts.parents[:max_drafts]))
    assert len(known) == num_fitting


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5])
def test_the_length_limit_holds_inside_a_tree(budget: int) -> None:
    settings = replace(SEEDED, max_length=len(PROMPT) + budget)
    text = plain_text(LAW, PROMPT, SEEDED)
    owner = Owner(new_verifier(max_speculative_tokens=12), settings=settings)
    result = owner.ask(bushy(text[:4]))
    assert result.num_accepted_tokens == min(budget - 1, 4)
    assert owner.said == text[: min(budget, 5)]


def test_ids_that_are_no_tokens_take_along_what_follows_them() -> None:
    owner = Owner(new_verifier())
    first, second, *_ = owner.expected
    drafts = Drafts((VOCAB_SIZE, 2**32 - 1, first, second, 1), (-1, -1, -1, 2, 0))
    result = owner.ask(drafts)
    assert (result.num_draft_tokens, result.num_accepted_tokens) == (2, 2)
    assert owner.said == owner.expected[:3]


def test_nothing_is_committed_behind_a_stop_token_in_a_tree() -> None:
    text = plain_text(LAW, PROMPT, SEEDED)
    stop = next(id for index, id in enumerate(text) if index > 1 and id not in text[:index])
    settings = replace(SEEDED, stop_token_ids=(stop,))
    owner = Owner(new_verifier(max_speculative_tokens=24), settings=settings)
    result = owner.ask(bushy(text[:8]), max_new_tokens=20)
    assert owner.said == text[: text.index(stop) + 1]
    assert result.last


def test_log_probabilities_follow_the_path() -> None:
    settings = replace(SEEDED, num_logprobs=2)
    plain, owner = (
        Owner(new_verifier(max_speculative_tokens=12), settings=settings) for _ in range(2)
    )
    expected = []
    for index in range(5):
        expected += plain.ask(start=len(plain.log) if index else 0).logprobs
    assert [*owner.ask(bushy(owner.expected[:4], where=2)).logprobs] == expected


@pytest.mark.parametrize(
    ("drafts", "message"),
    [
        (Drafts((1, 2), (-1, 1)), r"drafts.parents\[1\]: is 1;"),
        (Drafts((1, 1), (-1, -1)), r"drafts.token_ids\[1\]: 1 follows the same token"),
        (
            Drafts((1, 2), (-1, -1), (Support((1,), (1.0,)),) * 2),
            "drafts.supports: is set for a tree",
        ),
    ],
)
def test_a_malformed_tree_is_refused(drafts: Drafts, message: str) -> None:
    owner = Owner(new_verifier())
    result = owner.send(drafts)
    assert result is not None and result.error is not None
    assert result.error.reason is RoundErrorReason.INVALID_ARGUMENT
    assert message.replace("\\", "") in result.error.message
    owner.ask()
    assert owner.said == owner.expected[:1]


@pytest.mark.parametrize("rule", [AcceptanceRule.REJECTION, AcceptanceRule.BLOCK])
def test_the_other_rules_refuse_trees_but_take_chains_with_parents(rule: AcceptanceRule) -> None:
    owner = Owner(new_verifier(), settings=replace(SEEDED, acceptance_rule=rule))
    result = owner.send(Drafts((1, 2), (-1, -1)))
    assert result is not None and result.error is not None
    assert "expected a chain under the rule" in result.error.message
    certain = tuple(Support((id,), (1.0,)) for id in (1, 2))
    assert owner.ask(Drafts((1, 2), (-1, 0), certain)).num_draft_tokens == 2
    greedy = Owner(new_verifier(), settings=replace(GREEDY, acceptance_rule=rule))
    assert greedy.ask(bushy(greedy.expected[:2])).num_accepted_tokens == 2
