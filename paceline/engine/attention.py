"""Attention on a CPU with the same bits for a row, however it is computed.

A row's result depends on the shape of the kernel call in two ways. Keys run in steps of 512, padded
and masked, and then further masked keys change nothing. Queries run in tiles: the query heads that
share a key head are folded into rows, and from four rows to 32, or in tiles of 16 queries, a row's
bits depend neither on its place nor on its neighbours. The kernel is probed when a model is loaded.

Knows nothing about models and the KV cache but the shape of a storage. Invariant: a row of a result
depends only on that row of the query and on the keys and values up to its position.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from paceline.engine.attention_shape import AttentionShape
from paceline.engine.kv_storage import CELL_SIZE
from paceline.errors import InvalidConfig

TILE_QUERIES = 16
MIN_TILE_ROWS = 4
MAX_NARROW_ROWS = 32
"""The kernel cuts a tile of more rows in two; only a remainder that it is probed with is exact."""

_sdpa: Callable[..., tuple[Tensor, Tensor]] = (
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
)


class CausalMasks:
    """Additive masks for tiles at any position, as views of one tensor per window.

    Row r of that tensor is 0 up to some column and -inf from there on, one column later for every
    query; so a tile that begins further on sees the same numbers, shifted.
    """

    def __init__(self, shape: AttentionShape, max_length: int) -> None:
        self._group = shape.group
        self._length = max_length + 2 * CELL_SIZE
        self._lines: dict[int | None, Tensor] = {}

    def view(
        self, window: int | None, position: int, num_tiles: int, tile: int, num_keys: int
    ) -> Tensor:
        """Return `[num_tiles, 1, tile * group, num_keys]`, the last tile first.

        The first query of the first tile is at `position`; a query sees the `window` newest keys.
        """
        if window not in self._lines:
            self._lines[window] = self._line(window)
        row_length = 2 * self._length
        last = position + (num_tiles - 1) * tile
        return self._lines[window].as_strided(
            (num_tiles, 1, tile * self._group, num_keys),
            (tile, 0, row_length, 1),
            self._length - last,
        )

    def _line(self, window: int | None) -> Tensor:
        query = torch.arange(TILE_QUERIES).repeat_interleave(self._group)[:, None]
        distance = query - (torch.arange(2 * self._length) - self._length)
        is_hidden = distance < 0
        if window is not None:
            is_hidden |= distance >= window
        return torch.zeros(is_hidden.shape).masked_fill_(is_hidden, float("-inf"))


class TiledAttention:
    """The kernel and its tiling for one model.

    Raises `InvalidConfig` if rows are not exact on this machine, even in tiles of one size.
    """

    def __init__(self, shape: AttentionShape, dtype: torch.dtype, max_length: int) -> None:
        self.shape = shape
        self.masks = CausalMasks(shape, max_length)
        self._is_narrow_exact = True
        if not self._has_exact_rows(dtype):
            self._is_narrow_exact = False
            if not self._has_exact_rows(dtype):
                raise InvalidConfig(
                    f"Attention with {shape.num_heads} heads of size {shape.head_dim} over "
                    f"{shape.num_kv_heads} key heads in {dtype} gives rows that depend on the "
                    "other rows of a batch on this machine; another data type may help."
                )

    def tile(self, num_queries: int) -> int:
        """Queries per tile for so many queries of a sequence."""
        is_narrow = num_queries <= TILE_QUERIES and (
            num_queries * self.shape.group <= MAX_NARROW_ROWS
        )
        if is_narrow and self._is_narrow_exact:
            return max(num_queries, -(-MIN_TILE_ROWS // self.shape.group))
        return TILE_QUERIES

    def __call__(
        self,
        query: Tensor,  # [N, num_heads, head_dim]
        keys: Tensor,  # [num_tiles, num_kv_heads, num_keys, head_dim]
        values: Tensor,  # like keys
        mask: Tensor,  # [num_tiles, 1, tile * group, num_keys], the last tile first
        scaling: float,
    ) -> Tensor:
        """Return `[N, num_heads * head_dim]`."""
        num_tiles, num_kv_heads, _, head_dim = keys.shape
        num_queries = query.shape[0]
        group = self.shape.group
        tile = mask.shape[2] // group
        num_padded = num_tiles * tile
        if num_queries == 1:
            query = query.expand(tile, -1, -1)
        elif num_queries < num_padded:
            query = functional.pad(query, (0, 0, 0, 0, 0, num_padded - num_queries))
        tiles = query.unflatten(0, (num_tiles, tile)).unflatten(2, (num_kv_heads, group))
        if num_tiles > 1:
            tiles = tiles.flip(0)
        folded = tiles.transpose(1, 2).reshape(num_tiles, num_kv_heads, tile * group, head_dim)
        folded = folded.contiguous()  # copies of a single query may be one and the same memory
        result, _ = _sdpa(folded, keys, values, 0.0, False, attn_mask=mask, scale=scaling)
        tiles = result.unflatten(2, (tile, group)).transpose(1, 2)
        if num_tiles > 1:
            tiles = tiles.flip(0)
        rows: Tensor = tiles.reshape(num_padded, -1)[:num_queries]
        return rows

    @torch.inference_mode()
    def _has_exact_rows(self, dtype: torch.dtype) -> bool:
        """Compare rows of a long chunk with the same rows in other widths and at other places."""
        num_queries = CELL_SIZE + 2 * TILE_QUERIES
        shape = self.shape
        generator = torch.Generator().manual_seed(0)
        query = torch.randn(num_queries, shape.num_heads, shape.head_dim, generator=generator)
        kv = torch.randn(
            1, 2, shape.num_kv_heads, 3 * CELL_SIZE, shape.head_dim, generator=generator
        )
        query, kv = query.to(dtype), kv.to(dtype)

        def attend(start: int, num_rows: int, num_extra_keys: int = 0) -> Tensor:
            rows = SequenceRows(self, kv, 0, start, num_rows, num_extra_keys)
            mask = rows.mask(self, None)
            part = query[start : start + num_rows]
            return self(part, rows.keys[0], rows.values[0], mask, shape.head_dim**-0.5)

        expected = attend(0, num_queries)
        places = ((0, 0), (100, 0), (100, CELL_SIZE), (CELL_SIZE - 9, 0), (CELL_SIZE, 0))
        return all(
            torch.equal(attend(start, n, extra), expected[start : start + n])
            for start, extra in places
            for n in (*range(1, 18), 31)
        )


class SequenceRows:
    """One sequence's rows in a pass, of a tree one branch's, and views of its storage."""

    def __init__(
        self,
        attention: TiledAttention,
        storage: Tensor,  # [num_layers, 2, num_kv_heads, room, head_dim]
        first_row: int,
        position: int,
        num_rows: int,
        num_extra_keys: int = 0,
    ) -> None:
        self.rows = slice(first_row, first_row + num_rows)
        self._position = position
        self._tile = attention.tile(num_rows)
        self._num_tiles = -(-num_rows // self._tile)
        end = position + num_rows
        self._num_keys = -(-end // CELL_SIZE) * CELL_SIZE + num_extra_keys
        seen = storage[:, :, None, :, : self._num_keys].expand(-1, -1, self._num_tiles, -1, -1, -1)
        self.keys: Sequence[Tensor] = seen[:, 0].unbind(0)
        self.values: Sequence[Tensor] = seen[:, 1].unbind(0)
        self.new: Sequence[Tensor] = storage[:, :, :, position:end].unbind(0)
        """Where the rows' own keys and values go: `[2, num_kv_heads, N, head_dim]` per layer."""

    def mask(self, attention: TiledAttention, window: int | None) -> Tensor:
        """The mask of the rows' tiles."""
        return attention.masks.view(
            window, self._position, self._num_tiles, self._tile, self._num_keys
        )


class TreeRows(NamedTuple):
    """Rows of a tree in a pass, whose branches take each other's places in the storage."""

    rows: slice
    kept: Tensor
    """Where their keys and values stay, `[num_layers, 2, num_kv_heads, N, head_dim]`."""


class AttentionPass:
    """The attention of all sequences of one pass.

    The branches of a depth-first tree are `SequenceRows` of one storage, in order: each is attended
    to before the next one takes its place, and finds contiguous keys of its own path before it.
    """

    def __init__(
        self,
        attention: TiledAttention,
        sequences: Sequence[SequenceRows],
        trees: Sequence[TreeRows] = (),
    ) -> None:
        self._attention = attention
        self._sequences = sequences
        self._trees = trees
        self._masks: dict[int | None, list[Tensor]] = {}

    def attend(
        self,
        layer: int,
        query: Tensor,  # [N, num_heads, head_dim], all sequences' rows one after the other
        key_value: Tensor,  # [N, 2, num_kv_heads, head_dim]
        scaling: float,
        window: int | None,
    ) -> Tensor:
        """Store the rows' keys and values and return `[N, num_heads * head_dim]`.

        Rows after the last sequence's are padding and get zeros.
        """
        for tree in self._trees:
            tree.kept[layer].copy_(key_value[tree.rows].permute(1, 2, 0, 3))
        if window not in self._masks:
            self._masks[window] = [s.mask(self._attention, window) for s in self._sequences]
        results = []
        for sequence, mask in zip(self._sequences, self._masks[window], strict=True):
            sequence.new[layer].copy_(key_value[sequence.rows].permute(1, 2, 0, 3))
            results.append(
                self._attention(
                    query[sequence.rows],
                    sequence.keys[layer],
                    sequence.values[layer],
                    mask,
                    scaling,
                )
            )
        num_padding = query.shape[0] - self._sequences[-1].rows.stop
        if num_padding:
            results.append(results[0].new_zeros(num_padding, results[0].shape[1]))
        return results[0] if len(results) == 1 else torch.cat(results)
