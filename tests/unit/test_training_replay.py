"""Replayed passes are those of the greedy loop, drafted and verified token by token."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from draft_service.training.replay import (
    following_tokens,
    num_accepted,
    num_passes,
    tokens_per_pass,
)

TOKENS = st.integers(0, 2)


def passes_of_the_loop(
    answer: list[int], drafts: list[list[int]], num_drafts: int
) -> tuple[int, int]:
    """Tokens and passes behind the first token, the loop written out.

    `drafts[i]`: what is drafted behind `answer[i]`.
    """
    committed, passes = 1, 0
    while committed < len(answer):
        passes += 1
        for draft in drafts[committed - 1][:num_drafts]:
            if committed < len(answer) and draft == answer[committed]:
                committed += 1
            else:
                break
        committed += 1  # the target's own token; behind the last one there is none
    return len(answer) - 1, passes


@given(
    answer=st.lists(TOKENS, min_size=2, max_size=12),
    data=st.data(),
    num_drafts=st.sampled_from([1, 3, 5]),
)
def test_a_replay_counts_the_passes_of_the_loop(
    answer: list[int], data: st.DataObject, num_drafts: int
) -> None:
    row = st.lists(TOKENS, min_size=5, max_size=5)
    drafts = [data.draw(row) for _ in answer[:-1]]
    # Row i of a sequence is followed by token i + 2: a prompt of one token comes before.
    following = following_tokens(torch.tensor([9, *answer]), 5, len(answer) - 1)
    accepted = num_accepted(torch.tensor(drafts).T, following).tolist()
    num_tokens, passes = passes_of_the_loop(answer, drafts, num_drafts)
    assert num_passes(accepted, num_drafts) == passes
    assert tokens_per_pass([accepted, accepted], num_drafts) == num_tokens / passes


def test_drafts_behind_the_end_of_the_text_are_not_accepted() -> None:
    following = following_tokens(torch.tensor([9, 1, 1]), 3, 1)
    assert following.tolist() == [[1], [-1], [-1]]
    assert num_accepted(torch.tensor([[1], [1], [1]]), following).tolist() == [1]
