"""The attention of all rows of a pass over a pool, in waves of tiles.

Knows nothing about sequences: the numbers of the pass (`numbers`) say what goes where. Invariant:
it does the same operations on tensors of the same shapes for all passes of the same widths.
"""

import torch
from torch import Tensor

from paceline.engine.paged.kernels import PagedKernel
from paceline.engine.paged.numbers import PassNumbers


class PagedAttention:
    """Attention during one pass; what decoders know as an `AttentionPass`."""

    def __init__(
        self,
        kernel: PagedKernel,
        blocks: Tensor,  # [num_layers, 2, num_blocks, PAGE_SIZE, num_kv_heads, head_dim]
        numbers: PassNumbers,
        kept: Tensor | None,  # [num_layers, N, 2, num_kv_heads, head_dim]
    ) -> None:
        self._blocks = blocks
        self._slots = blocks.flatten(2, 3)
        self._numbers = numbers
        self._kept = kept
        self._waves = [kernel.bind(wave.tables, wave.num_keys) for wave in numbers.waves]

    def attend(
        self,
        layer: int,
        query: Tensor,  # [N, num_heads, head_dim]
        key_value: Tensor,  # [N, 2, num_kv_heads, head_dim]
        scaling: float,
        window: int | None,
    ) -> Tensor:
        """Store the rows' keys and values and return `[N, num_heads * head_dim]`.

        Rows of padding get those of some other query.
        """
        if self._kept is not None:
            self._kept[layer].copy_(key_value)
        keys, values = self._blocks[layer]
        results = []
        for wave, attention in zip(self._numbers.waves, self._waves, strict=True):
            written = key_value.index_select(0, wave.written_rows).transpose(0, 1)
            self._slots[layer].index_copy_(1, wave.slots, written)
            tiles = query.index_select(0, wave.tile_rows)
            results.append(attention.attend(tiles, keys, values, scaling, window))
        queries = results[0] if len(results) == 1 else torch.cat(results)
        return queries.index_select(0, self._numbers.places)
