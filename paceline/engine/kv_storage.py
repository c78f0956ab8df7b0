"""Keys and values of one sequence as one tensor, in cells of 512 tokens, with its features beside.

A cell is the step in which attention lengthens its keys, so that a sequence's storage is always
what attention reads, without a copy. Content beyond a sequence's tokens is masked there; it must
only be finite, and it is: zeros, or what was computed for tokens since dropped.

Features are hidden states that drafters are fed with. They live where the KV lives, so that a
prefix that is found again brings its features along.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.engine.attention_shape import AttentionShape

CELL_SIZE = 512


class FeaturesInOrder:
    """Of a storage whose features lie one behind the other."""

    __slots__ = ()
    features: Tensor

    def feature_rows(self, start: int, end: int) -> Tensor:
        """The features `[end - start, feature_size]` of these tokens."""
        return self.features[start:end]

    def keep_features(self, start: int, rows: Tensor) -> None:
        """Keep features `[N, feature_size]` for the tokens from `start` on."""
        self.features[start : start + len(rows)].copy_(rows)


@dataclass(eq=False, slots=True, weakref_slot=True)
class SequenceStorage(FeaturesInOrder):
    """What is kept of one sequence."""

    key_value: Tensor
    """`[num_layers, 2, num_kv_heads, room, head_dim]`; 2 for keys and values."""
    features: Tensor
    """`[room, feature_size]`, half precision."""


@dataclass(frozen=True, slots=True)
class TorchStorage:
    """Makes storages for a model."""

    shape: AttentionShape
    dtype: torch.dtype
    feature_size: int = 0
    """Numbers per token; 0 keeps none."""

    @property
    def cell_size(self) -> int:
        """Tokens per cell."""
        return CELL_SIZE

    def allocate(self, num_cells: int) -> SequenceStorage:
        """New storage, all zeros."""
        return self.allocate_tokens(num_cells * CELL_SIZE)

    def allocate_tokens(self, room: int) -> SequenceStorage:
        """New storage for so many tokens, all zeros."""
        shape = self.shape
        key_value_shape = (shape.num_layers, 2, shape.num_kv_heads, room, shape.head_dim)
        return SequenceStorage(
            torch.zeros(key_value_shape, dtype=self.dtype),
            torch.zeros((room, self.feature_size), dtype=torch.float16),
        )

    def grow(self, storage: SequenceStorage, num_cells: int) -> SequenceStorage:
        """The same content with room for `num_cells` cells."""
        grown = self.allocate(num_cells)
        self.copy_prefix(storage, grown, len(storage.features))
        return grown

    def copy_prefix(
        self, source: SequenceStorage, target: SequenceStorage, num_tokens: int
    ) -> None:
        """Copy KV and features of the first `num_tokens` tokens."""
        target.key_value[:, :, :, :num_tokens].copy_(source.key_value[:, :, :, :num_tokens])
        target.features[:num_tokens].copy_(source.features[:num_tokens])

    def copy_path(
        self, tree: SequenceStorage, path: Sequence[int], target: SequenceStorage, num_tokens: int
    ) -> None:
        """Copy KV and features of these tokens of a tree behind the first `num_tokens` tokens."""
        end = num_tokens + len(path)
        indices = torch.tensor(path, dtype=torch.long)
        target.key_value[:, :, :, num_tokens:end] = tree.key_value[:, :, :, indices]
        target.features[num_tokens:end] = tree.features[indices]


def kv_bytes_per_token(shape: AttentionShape, dtype: torch.dtype, feature_size: int = 0) -> int:
    """Memory that one token takes."""
    num_values = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    return num_values * dtype.itemsize + feature_size * torch.float16.itemsize
