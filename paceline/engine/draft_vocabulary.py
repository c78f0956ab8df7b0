"""The tokens that a drafter can propose: all of the target's, or those that are frequent enough.

Fewer tokens make a drafter's output matrix small, the largest part of its cost; the others are
never proposed (FR-Spec, arXiv 2502.14856, and EAGLE-3, arXiv 2503.01840). Checkpoints name them in
two ways: `d2t` holds distances, `token_map` the tokens themselves.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.engine.device_rows import host_rows
from paceline.engine.head_tensors import INTEGERS, HeadTensors
from paceline.engine.kv_cache import KVCache, KVSequence
from paceline.engine.model import Features, LanguageModel, Logits, PassSequence


class DraftVocabulary:
    """Spreads logits of draft tokens over the target's tokens."""

    def __init__(self, target_ids: Tensor, vocab_size: int) -> None:
        """`target_ids`: the target's token of each draft token, `[draft_vocab_size]`.

        `vocab_size`: tokens of the target, without rows that pad its matrices.
        """
        is_known = target_ids < vocab_size
        self._draft_ids = is_known.nonzero()[:, 0].numpy()
        self._target_ids = target_ids[is_known].numpy()
        self._is_whole = np.array_equal(self._target_ids, np.arange(vocab_size))
        self.vocab_size = vocab_size

    def spread(self, drafted: Tensor) -> Logits:
        """`[N, draft_vocab_size]` as float32 `[N, vocab_size]`; minus infinity for other tokens."""
        rows: Logits = drafted.float().cpu().numpy()
        if len(self._draft_ids) < rows.shape[1]:
            rows = rows[:, self._draft_ids]
        if self._is_whole:
            return rows
        logits = np.full((len(rows), self.vocab_size), -np.inf, dtype=np.float32)
        logits[:, self._target_ids] = rows
        return logits


class DraftVocabularyModel:
    """A language model whose logits are of draft tokens, as one of all the target's tokens."""

    def __init__(self, model: LanguageModel, vocabulary: DraftVocabulary) -> None:
        self._model = model
        self._vocabulary = vocabulary

    @property
    def vocab_size(self) -> int:
        """Number of token ids of the target."""
        return self._vocabulary.vocab_size

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens, prompt and answer together."""
        return self._model.max_model_len

    @property
    def kv_cache(self) -> KVCache[Any]:
        """The KV of all sequences of this model."""
        return self._model.kv_cache

    @property
    def feature_size(self) -> int:
        """Numbers in the features of a token; 0 when none are kept."""
        return self._model.feature_size

    def features(self, kv: KVSequence[Any], start: int, end: int) -> Features:
        """The features of the computed tokens from `start` up to `end`."""
        return self._model.features(kv, start, end)

    def forward(self, batch: Sequence[PassSequence]) -> list[Logits]:
        """Run one pass; minus infinity for tokens that cannot be proposed."""
        # The model knows its own tokens only: what it would choose is not the target's.
        unsettled = [replace(part, settings=None) for part in batch]
        return [
            self._vocabulary.spread(torch.from_numpy(host_rows(rows)))
            for rows in self._model.forward(unsettled)
        ]


def read_distances(tensors: HeadTensors, draft_vocab_size: int, vocab_size: int) -> Tensor:
    """The target's token of each draft token by `d2t`: draft token i is the target's i + d2t[i].

    Raises:
        InvalidConfig: `d2t` leads to tokens that make no sense, or to others than `t2d` marks.
    """
    target_ids = torch.arange(draft_vocab_size)
    if "d2t" in tensors.names:
        target_ids += tensors.read("d2t", (draft_vocab_size,), INTEGERS)
    expected = "distances, draft id + d2t[draft id]"
    _check(tensors, "d2t", target_ids, vocab_size, expected)
    if "t2d" in tensors.names:
        mask = tensors.read("t2d", (vocab_size,), (torch.bool,))
        if not torch.equal(mask.nonzero()[:, 0], target_ids.sort().values):
            raise tensors.refused(
                "the tensor 't2d' marks other tokens than those that 'd2t' leads to"
            )
    return target_ids


def read_token_map(tensors: HeadTensors, draft_vocab_size: int, vocab_size: int) -> Tensor:
    """The target's token of each draft token by `token_map`; raises `InvalidConfig`."""
    if "token_map" not in tensors.names:
        return torch.arange(draft_vocab_size)
    target_ids = tensors.read("token_map", (draft_vocab_size,), INTEGERS).long()
    _check(tensors, "token_map", target_ids, vocab_size, "token ids")
    return target_ids


def _check(
    tensors: HeadTensors, name: str, target_ids: Tensor, vocab_size: int, expected: str
) -> None:
    lowest, highest = int(target_ids.min()), int(target_ids.max())
    if lowest < 0 or highest >= vocab_size:
        raise tensors.refused(
            f"the tensor {name!r} leads to the token ids {lowest} to {highest}; expected 0 to "
            f"{vocab_size - 1} from {expected}"
        )
    if len(target_ids.unique()) < len(target_ids):
        raise tensors.refused(
            f"the tensor {name!r} leads from two draft ids to one token id; expected {expected}"
        )
