"""Which of the target's tokens a drafter can propose: those that are most frequent in its text."""

import torch
from torch import Tensor

from draft_service.training.text import IntArray


def most_frequent(ids: IntArray, size: int, vocab_size: int) -> Tensor:
    """Int64 `[size]`, ascending; among equally frequent ones the lowest ids, which are short.

    Ascending, so that the distances of `d2t` are never negative.
    """
    counts = torch.bincount(torch.from_numpy(ids), minlength=vocab_size)
    by_frequency = torch.argsort(counts, descending=True, stable=True)
    return by_frequency[: min(size, vocab_size)].sort().values
