"""Keys and values of one sequence as one tensor, in cells of 512 tokens.

A cell is the step in which attention lengthens its keys, so that a sequence's storage is always
what attention reads, without a copy. Content beyond a sequence's tokens is masked there; it must
only be finite, and it is: zeros, or what was computed for tokens since dropped.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.engine.attention_shape import AttentionShape

CELL_SIZE = 512


@dataclass(frozen=True, slots=True)
class TorchStorage:
    """Makes storages `[num_layers, 2, num_kv_heads, room, head_dim]`; 2 for keys and values."""

    shape: AttentionShape
    dtype: torch.dtype

    @property
    def cell_size(self) -> int:
        """Tokens per cell."""
        return CELL_SIZE

    def allocate(self, num_cells: int) -> Tensor:
        """New storage, all zeros."""
        shape = self.shape
        room = num_cells * CELL_SIZE
        return torch.zeros(
            (shape.num_layers, 2, shape.num_kv_heads, room, shape.head_dim), dtype=self.dtype
        )

    def grow(self, storage: Tensor, num_cells: int) -> Tensor:
        """The same content with room for `num_cells` cells."""
        grown = self.allocate(num_cells)
        self.copy_prefix(storage, grown, storage.shape[3])
        return grown

    def copy_prefix(self, source: Tensor, target: Tensor, num_tokens: int) -> None:
        """Copy the KV of the first `num_tokens` tokens."""
        target[:, :, :, :num_tokens].copy_(source[:, :, :, :num_tokens])


def kv_bytes_per_token(model: PreTrainedModel) -> int:
    """Memory that the KV of one token takes; raises `InvalidConfig` if there is no attention."""
    shape = AttentionShape.of(model.config)
    return 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * model.dtype.itemsize
