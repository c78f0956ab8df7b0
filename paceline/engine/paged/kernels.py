"""What computes attention over blocks of a pool, and which of them a device gets.

- `VarlenKernel` (`varlen`): FlashAttention as torch brings it, which reads the blocks where they
  are. For cards from compute capability 8.0 on, in half precision.
- `GatheredKernel`, anywhere else: gathers the keys of each tile and gives them to
  scaled-dot-product attention with a mask. On a CPU that is `TiledAttention`, and so the rows have
  the bits of the contiguous layout.

`flex_attention`, which also takes block tables and any mask, was considered and left out: it is
compiled for every shape, and its autotuning chooses by measured time, so that two processes with
the same weights may choose differently and give a row different bits.

Dimensions: T tiles of 16 queries, B blocks of a table, P blocks of the pool, H heads, D their size.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from paceline.engine.attention import TiledAttention
from paceline.engine.attention_shape import AttentionShape
from paceline.engine.kv_storage import CELL_SIZE
from paceline.engine.paged.storage import PAGE_SIZE
from paceline.engine.paged.waves import TILE_SIZE

BLOCKS_PER_STEP = CELL_SIZE // PAGE_SIZE
TILES_PER_CALL = 8
"""Tiles whose keys are gathered at a time: enough for all cores, and few enough to have room."""
GATHERED_BYTES = 2**28
"""On a card fewer tiles where their keys, as wide as the longest text, would take more."""


class WaveAttention(Protocol):
    """The attention of one wave: what is the same in all layers is computed once."""

    def attend(
        self,
        query: Tensor,  # [T * TILE_SIZE, H, D]
        keys: Tensor,  # [P, PAGE_SIZE, num_kv_heads, D]
        values: Tensor,  # like keys
        scaling: float,
        window: int | None,
    ) -> Tensor:
        """Return `[T * TILE_SIZE, H * D]`.

        Query j of a tile with n keys sees the first n - 15 + j of them, and of those the newest
        `window`.
        """


class PagedKernel(Protocol):
    """A way to attend; it has no state that a pass changes."""

    @property
    def name(self) -> str:
        """What it is, for the log."""

    @property
    def has_exact_rows(self) -> bool:
        """Whether a row's bits do not depend on how it is computed, as far as was found."""

    def table_width(self, num_blocks: int) -> int:
        """The blocks of a table for a pass whose longest sequence has so many."""

    def bind(
        self,
        tables: Tensor,  # [T, B]
        num_keys: Tensor,  # [T]
    ) -> WaveAttention:
        """Make ready for a wave of such tiles."""


class GatheredKernel:
    """Scaled-dot-product attention over copies of the keys.

    On a CPU `tiled` must be given, and tables are as wide as a pass needs: there more masked keys
    change nothing. Elsewhere that is not known, so they are always as wide as the longest text.
    """

    has_exact_rows = True

    def __init__(
        self, shape: AttentionShape, max_length: int, tiled: TiledAttention | None
    ) -> None:
        self.name = "scaled-dot-product attention over gathered blocks"
        self._shape = shape
        self._tiled = tiled
        self._most_blocks = blocks_of(max_length)

    def table_width(self, num_blocks: int) -> int:
        """A whole number of steps of 512 keys."""
        needed = self._most_blocks if self._tiled is None else num_blocks
        return -(-needed // BLOCKS_PER_STEP) * BLOCKS_PER_STEP

    def bind(self, tables: Tensor, num_keys: Tensor) -> WaveAttention:
        """Make ready for a wave of such tiles."""
        return _GatheredWave(self._shape, self._tiled, tables, num_keys)


class _GatheredWave:
    def __init__(
        self,
        shape: AttentionShape,
        tiled: TiledAttention | None,
        tables: Tensor,
        num_keys: Tensor,
    ) -> None:
        self._shape = shape
        self._tiled = tiled
        self._per_call = TILES_PER_CALL if tiled is not None else tiles_per_call(shape, tables)
        # `TiledAttention` takes the last tile first.
        parts = zip(tables.split(self._per_call), num_keys.split(self._per_call), strict=True)
        self._tiles = [(table.flip(0), count.flip(0)) for table, count in parts]
        self._masks: dict[int | None, list[Tensor]] = {}

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """See `WaveAttention`."""
        if window not in self._masks:
            self._masks[window] = [self._mask(*tiles, query, window) for tiles in self._tiles]
        queries = query.split(self._per_call * TILE_SIZE)
        parts = zip(self._tiles, self._masks[window], queries, strict=True)
        results = [
            self._attend(part, gathered(keys, table), gathered(values, table), mask, scaling)
            for (table, _), mask, part in parts
        ]
        return results[0] if len(results) == 1 else torch.cat(results)

    def _attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float
    ) -> Tensor:
        if self._tiled is not None:
            return self._tiled(query, keys, values, mask, scaling)
        shape, num_tiles = self._shape, len(keys)
        heads = (shape.num_kv_heads, shape.group)
        tiles = query.unflatten(0, (num_tiles, TILE_SIZE)).flip(0).unflatten(2, heads)
        folded = tiles.transpose(1, 2).flatten(2, 3)
        result = functional.scaled_dot_product_attention(folded, keys, values, mask, scale=scaling)
        rows: Tensor = result.unflatten(2, (TILE_SIZE, shape.group)).transpose(1, 2).flip(0)
        return rows.flatten(0, 1).flatten(1)

    def _mask(self, table: Tensor, num_keys: Tensor, query: Tensor, window: int | None) -> Tensor:
        """Additive `[tiles, 1, TILE_SIZE * group, keys]`: 0 where a query sees a key."""
        device = query.device
        key = torch.arange(table.shape[1] * PAGE_SIZE, device=device)
        own = num_keys[:, None] - TILE_SIZE + torch.arange(TILE_SIZE, device=device)
        own = own.repeat_interleave(self._shape.group, dim=1)[:, None, :, None]
        is_hidden = key > own
        if window is not None:
            is_hidden |= key <= own - window
        dtype = torch.float32 if self._tiled is not None else query.dtype
        mask = torch.zeros(is_hidden.shape, dtype=dtype, device=device)
        return mask.masked_fill_(is_hidden, float("-inf"))


def tiles_per_call(
    shape: AttentionShape,
    tables: Tensor,  # [T, B]
) -> int:
    """The same for all passes, whose tiles are a multiple of eight: all calls have one shape."""
    num_tiles = TILES_PER_CALL
    per_tile = tables.shape[1] * PAGE_SIZE * shape.num_kv_heads * shape.head_dim * 4
    while num_tiles > 1 and num_tiles * per_tile > GATHERED_BYTES:
        num_tiles //= 2
    return num_tiles


def gathered(
    blocks: Tensor,  # [P, PAGE_SIZE, num_kv_heads, D]
    table: Tensor,  # [T, B]
) -> Tensor:
    """The content of each tile's blocks, `[T, num_kv_heads, B * PAGE_SIZE, D]`."""
    found = blocks.index_select(0, table.flatten())
    return found.view(len(table), -1, *blocks.shape[2:]).transpose(1, 2).contiguous()


def blocks_of(max_length: int) -> int:
    """The blocks that the last tile of a text of this length may see."""
    return -(-(max_length - 1 + TILE_SIZE) // PAGE_SIZE)
