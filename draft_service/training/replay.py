"""Replays the greedy draft/verify loop over an answer that is known already.

Pure: what would be accepted behind each token is given, the rounds follow.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def num_accepted(drafts: Tensor, following: Tensor) -> Tensor:
    """Int64 `[n]`: how many drafts from the first on are what follows.

    Both `[num_drafts, n]`: behind each of n tokens, the drafts and the true tokens; -1 where the
    text has ended.
    """
    return (drafts == following).long().cumprod(dim=0).sum(dim=0)


def num_passes(accepted: Sequence[int], num_drafts: int) -> int:
    """Target passes behind the first token of an answer, each with `num_drafts` drafts.

    `accepted` for every token of the answer but the last: how many of the drafts behind it hold.
    """
    place, passes = 0, 0
    while place < len(accepted):
        place += min(accepted[place], num_drafts) + 1
        passes += 1
    return passes


def tokens_per_pass(answers: Sequence[Sequence[int]], num_drafts: int) -> float:
    """Tokens committed per target pass over all answers, the first token of each left out."""
    num_tokens = sum(len(accepted) for accepted in answers)
    return num_tokens / max(1, sum(num_passes(accepted, num_drafts) for accepted in answers))


def following_tokens(ids: Tensor, num_drafts: int, num_rows: int) -> Tensor:
    """`[num_drafts, num_rows]` of a sequence: row i is followed by token i + 2, i + 3 and so on."""
    padded = torch.cat((ids, ids.new_full((num_drafts,), -1)))
    return torch.stack([padded[2 + step : 2 + step + num_rows] for step in range(num_drafts)])
