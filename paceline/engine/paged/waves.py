"""The rows of a pass as tiles of 16 queries, and where their keys and values are written.

The rows of a sequence, decode, verify and prefill alike, are cut into tiles of at most 16 queries
that follow one another. A tile is one entry of a batch of attention: it has a row of a block table
and sees the keys up to its 16th query. So no launch has queries of width 1, which kernels treat
otherwise, and a row's bits do not depend on how many rows came with it.

The branches of a tree stand at the same positions. The first takes its places in the sequence; each
other one takes a *lane*: the full blocks before the first fork, and scratch blocks from there on,
into which go what is cached of that block, the rows on the way to the branch, and its own. When
scratch runs out, branches wait for the next *wave*: in every layer the waves write and attend one
after the other, and the lanes are used again. One wave is the rule; scratch makes trees fast, not
right.

Plain integers: knows nothing about tensors and kernels. Invariant: when a wave attends, every
position up to a row's own stands in its lane as if the way to it were the text.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from paceline.engine.paged.storage import (
    PAGE_SIZE,
    PagedKV,
    PagedSequence,
    PagedStorage,
    slots_in,
)
from paceline.engine.pass_plan import PassPlan, PlannedRows

TILE_SIZE = 16
"""Queries of a tile."""


class Tile(NamedTuple):
    """Rows that attend together."""

    rows: range
    """At most `TILE_SIZE`, of the pass."""
    position: int
    """Of the first one."""
    blocks: Sequence[int]
    """Where its keys are. The last queries of a tile that is not full see keys behind these
    blocks; nobody looks at what they get."""

    @property
    def num_keys(self) -> int:
        """The keys that the last one of `TILE_SIZE` queries sees; the one before it one less."""
        return self.position + TILE_SIZE


@dataclass(slots=True)
class Wave:
    """What is written, and then attended to, at once."""

    written_rows: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    """For each of `written_rows` where it goes; a row may go to several."""
    tiles: list[Tile] = field(default_factory=list)

    def write(self, rows: Iterable[int], slots: Sequence[int]) -> None:
        """Write rows into slots."""
        self.written_rows.extend(rows)
        self.slots.extend(slots)


class BlockCopy(NamedTuple):
    """The first tokens of a block, which are to stand in another one as well."""

    source: int
    target: int
    num_tokens: int


class PagedPlan(NamedTuple):
    """Where a pass reads and writes."""

    waves: list[Wave]
    """Every row is in one tile of one of them."""
    copies: list[BlockCopy]
    """To be made before the pass."""


@dataclass(slots=True)
class _Lanes:
    """The block tables that the branches of one tree take turns with; of other rows, one."""

    blocks: list[list[int]]
    starts: list[int]
    """For each the first position that a branch must write itself, unless it is the first one."""
    copies: list[BlockCopy] = field(default_factory=list)


def plan_waves(plan: PassPlan[PagedKV], storage: PagedStorage) -> PagedPlan:
    """Where a planned pass reads and writes; gives sequences blocks of their own to write into."""
    found = PagedPlan([Wave()], [])
    scratch = [*storage.scratch]
    for sequence, group in groupby(plan.sequences, key=lambda rows: rows.storage):
        assert isinstance(sequence, PagedSequence)
        branches = [*group]
        lanes = _lanes(sequence, branches, storage, scratch)
        found.copies.extend(lanes.copies)
        _run(branches, lanes, found.waves)
    return found


def _lanes(
    sequence: PagedSequence,
    branches: Sequence[PlannedRows[PagedKV]],
    storage: PagedStorage,
    scratch: list[int],
) -> _Lanes:
    base = branches[0].position
    end = max(rows.position + rows.num_rows for rows in branches)
    assert end <= len(sequence.blocks) * PAGE_SIZE, "the caller has reserved the room"
    storage.make_writable(sequence, base, end)
    if len(branches) == 1:
        return _Lanes([sequence.blocks], [base])
    fork = min(rows.position for rows in branches[1:])
    lanes = _Lanes([sequence.blocks], [fork])
    first = fork // PAGE_SIZE
    num_own = -(-end // PAGE_SIZE) - first
    num_cached = max(0, base - first * PAGE_SIZE)
    while len(lanes.blocks) < len(branches) and len(scratch) >= num_own:
        own = [scratch.pop() for _ in range(num_own)]
        lanes.blocks.append(sequence.blocks[:first] + own)
        lanes.starts.append(first * PAGE_SIZE + num_cached)
        if num_cached:
            lanes.copies.append(BlockCopy(sequence.blocks[first], own[0], num_cached))
    return lanes


def _run(branches: Sequence[PlannedRows[PagedKV]], lanes: _Lanes, waves: list[Wave]) -> None:
    base = branches[0].position
    way: list[int] = []
    for number, branch in enumerate(branches):
        wave_number, lane = divmod(number, len(lanes.blocks))
        if wave_number == len(waves):
            waves.append(Wave())
        wave, blocks = waves[wave_number], lanes.blocks[lane]
        end = branch.position + branch.num_rows
        del way[branch.position - base :]
        way.extend(range(branch.first_row, branch.first_row + branch.num_rows))
        start = lanes.starts[lane] if number else base
        wave.write(way[start - base :], slots_in(blocks, start, end))
        wave.tiles.extend(_tiles(branch, blocks))


def _tiles(branch: PlannedRows[PagedKV], blocks: Sequence[int]) -> Iterator[Tile]:
    for start in range(0, branch.num_rows, TILE_SIZE):
        first, stop = branch.first_row + start, branch.first_row + branch.num_rows
        rows = range(first, min(first + TILE_SIZE, stop))
        yield Tile(rows, branch.position + start, blocks)
