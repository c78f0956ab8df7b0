"""A pass as one tensor of integers whose size only depends on a few widths.

A captured pass finds its inputs at one place of the memory, in shapes that never change. So all
that a pass is told stands in one tensor, one part behind the other, and each part is filled up with
what does no harm: rows of token 0 at position 0, writes into the dummy block, tiles that see 16
keys of it. Passes with the same `Widths` are the same computation on other numbers.

Dimensions: N rows, R rows of logits, V waves, W writes of a wave, T tiles of a wave, B blocks of a
table.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import NamedTuple

import torch
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
    places = [0] * widths.num_rows
    for number, wave in enumerate(paged.waves):
        for tile_number, tile in enumerate(wave.tiles):
            first = (number * widths.num_tiles + tile_number) * TILE_SIZE
            places[tile.rows.start : tile.rows.stop] = range(first, first + len(tile.rows))
    parts: list[Iterable[int]] = [
        _filled(plan.token_ids, widths.num_rows, 0),
        _filled(plan.positions, widths.num_rows, 0),
        _filled(plan.wanted_rows, widths.num_wanted, 0),
        places,
    ]
    waves = [*paged.waves, *repeat(Wave(), widths.num_waves - len(paged.waves))]
    parts.extend(_wave(wave, widths, dummy) for wave in waves)
    return torch.tensor([*chain.from_iterable(parts)], dtype=torch.int32)


def padding(widths: Widths, dummy: int) -> Tensor:
    """The numbers of a pass of nothing but padding."""
    return pack(PassPlan(), PagedPlan([], []), widths, dummy)


def unpack(numbers: Tensor, widths: Widths) -> PassNumbers:
    """Views of a pass's numbers, wide where torch indexes with them."""
    num_queries = widths.num_tiles * TILE_SIZE
    num_entries = widths.num_tiles * widths.num_blocks
    rows = [widths.num_rows, widths.num_rows, widths.num_wanted, widths.num_rows]
    wave = [widths.num_writes, widths.num_writes, num_queries, num_entries, widths.num_tiles]
    sizes = [*rows, *wave * widths.num_waves]
    pairs = zip(numbers.long().split(sizes), numbers.split(sizes), strict=True)
    token_ids, positions, wanted_rows, places = (part for part, _ in islice(pairs, len(rows)))
    waves = []
    for _ in range(widths.num_waves):
        (written, _), (slots, _), (tile_rows, _), (_, tables), (_, num_keys) = islice(pairs, 5)
        tables = tables.view(widths.num_tiles, widths.num_blocks)
        waves.append(WaveNumbers(written, slots, tile_rows, tables, num_keys))
    return PassNumbers(token_ids, positions, wanted_rows, places, waves)


def _wave(wave: Wave, widths: Widths, dummy: int) -> Iterator[int]:
    yield from _filled(wave.written_rows, widths.num_writes, 0)
    yield from _filled(wave.slots, widths.num_writes, dummy * PAGE_SIZE)
    for tile in wave.tiles:
        yield from _filled(tile.rows, TILE_SIZE, tile.rows.start)
    num_missing = widths.num_tiles - len(wave.tiles)
    yield from repeat(0, num_missing * TILE_SIZE)
    for tile in wave.tiles:
        yield from _filled(_table(tile), widths.num_blocks, dummy)
    yield from repeat(dummy, num_missing * widths.num_blocks)
    yield from _filled([tile.num_keys for tile in wave.tiles], widths.num_tiles, TILE_SIZE)


def _table(tile: Tile) -> Sequence[int]:
    return tile.blocks[: -(-tile.num_keys // PAGE_SIZE)]


def _filled(numbers: Sequence[int], size: int, filler: int) -> Iterator[int]:
    assert len(numbers) <= size, "the widths are those of a larger pass"
    return chain(numbers, repeat(filler, size - len(numbers)))
