"""A pass as one tensor of integers whose size only depends on a few widths.

A captured pass finds its inputs at one place of the memory, in shapes that never change. So all
that a pass is told stands in one tensor, one part behind the other, and each part is filled up with
what does no harm: rows of token 0 at position 0, writes into the dummy block, tiles that see 16
keys of it. Passes with the same `Widths` are the same computation on other numbers.

Dimensions: N rows, R rows of logits, V waves, W writes of a wave, T tiles of a wave, B blocks of a
table.
"""

from collections.abc import Sequence
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.engine.paged.storage import PAGE_SIZE, PagedKV
from paceline.engine.paged.waves import TILE_SIZE, PagedPlan, Tile, Wave
from paceline.engine.pass_plan import PassPlan


class Widths(NamedTuple):
    """The sizes of all tensors of a pass."""

    num_rows: int  # N
    num_wanted: int  # R
    num_waves: int  # V
    num_writes: int  # W
    num_tiles: int  # T
    num_blocks: int  # B
    keeps_rows: bool
    """Whether the keys and values of the rows come out of the pass, for its trees."""


class WaveNumbers(NamedTuple):
    """What one wave reads and writes."""

    written_rows: Tensor
    """`[W]`."""
    slots: Tensor
    """`[W]`, where those go."""
    tile_rows: Tensor
    """`[T * TILE_SIZE]`, the row of each query."""
    tables: Tensor
    """`[T, B]` int32, the blocks of each tile's keys."""
    num_keys: Tensor
    """`[T]` int32, the keys that the last query of each tile sees."""


class PassNumbers(NamedTuple):
    """What a pass is told."""

    token_ids: Tensor
    """`[N]`."""
    positions: Tensor
    """`[N]`."""
    wanted_rows: Tensor
    """`[R]`."""
    places: Tensor
    """`[N]`, the query of each row among all waves' queries, `[V * T * TILE_SIZE]`."""
    waves: list[WaveNumbers]


def pack(plan: PassPlan[PagedKV], paged: PagedPlan, widths: Widths, dummy: int) -> Tensor:
    """The numbers of a pass, int32 on the CPU."""
    numbers = np.zeros(sum(_sizes(widths)), dtype=np.int32)
    parts = iter(np.split(numbers, np.cumsum(_sizes(widths))[:-1]))
    token_ids, positions, wanted_rows, places = islice(parts, 4)
    _fill(token_ids, plan.token_ids)
    _fill(positions, plan.positions)
    _fill(wanted_rows, plan.wanted_rows)
    first = 0
    for wave in [*paged.waves, *repeat(Wave(), widths.num_waves - len(paged.waves))]:
        written_rows, slots, tile_rows, entries, num_keys = islice(parts, 5)
        slots[:] = dummy * PAGE_SIZE
        entries[:] = dummy
        num_keys[:] = TILE_SIZE
        _fill(written_rows, wave.written_rows)
        _fill(slots, wave.slots)
        tiles = tile_rows.reshape(widths.num_tiles, TILE_SIZE)
        tables = entries.reshape(widths.num_tiles, widths.num_blocks)
        for number, tile in enumerate(wave.tiles):
            tiles[number] = tile.rows.start
            _fill(tiles[number], tile.rows)
            _fill(tables[number], _table(tile))
            num_keys[number] = tile.num_keys
            place = first + number * TILE_SIZE
            places[tile.rows.start : tile.rows.stop] = range(place, place + len(tile.rows))
        first += widths.num_tiles * TILE_SIZE
    return torch.from_numpy(numbers)


def padding(widths: Widths, dummy: int) -> Tensor:
    """The numbers of a pass of nothing but padding."""
    return pack(PassPlan(), PagedPlan([], []), widths, dummy)


def unpack(numbers: Tensor, widths: Widths) -> PassNumbers:
    """Views of a pass's numbers, wide where torch indexes with them."""
    sizes = _sizes(widths)
    pairs = zip(numbers.long().split(sizes), numbers.split(sizes), strict=True)
    token_ids, positions, wanted_rows, places = (wide for wide, _ in islice(pairs, 4))
    waves = []
    for _ in range(widths.num_waves):
        (written, _), (slots, _), (tile_rows, _), (_, tables), (_, num_keys) = islice(pairs, 5)
        tables = tables.view(widths.num_tiles, widths.num_blocks)
        waves.append(WaveNumbers(written, slots, tile_rows, tables, num_keys))
    return PassNumbers(token_ids, positions, wanted_rows, places, waves)


def _sizes(widths: Widths) -> list[int]:
    """Of each part, in their order: four of the pass, and five of each wave."""
    num_queries = widths.num_tiles * TILE_SIZE
    num_entries = widths.num_tiles * widths.num_blocks
    rows = [widths.num_rows, widths.num_rows, widths.num_wanted, widths.num_rows]
    wave = [widths.num_writes, widths.num_writes, num_queries, num_entries, widths.num_tiles]
    return [*rows, *wave * widths.num_waves]


def _table(tile: Tile) -> Sequence[int]:
    return tile.blocks[: -(-tile.num_keys // PAGE_SIZE)]


def _fill(part: NDArray[np.int32], numbers: Sequence[int]) -> None:
    assert len(numbers) <= len(part), "the widths are those of a larger pass"
    part[: len(numbers)] = numbers
