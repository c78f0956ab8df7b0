"""Keys, values and features of all sequences in blocks of one pool that is allocated once.

A sequence is a list of blocks of 256 tokens: FlashAttention takes pages of a multiple of 256. Its
token at position p stands in *slot* `blocks[p // 256] * 256 + p % 256`. Sequences with the same
prefix hold the same full blocks of it; a block that several hold is copied before one of them
writes into it. Behind the blocks of sequences come some of scratch, for the branches of trees, and
one dummy, which padding writes to and unused entries of block tables name.

Content is finite everywhere: zeros, or what was computed for tokens since dropped.

Invariant: sequences hold no more blocks than they have cells in all, so a cache that counts cells
never asks for a block that is not there. Shared blocks are counted by each holder, and so the copy
of one, too, has its room.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.engine.attention_shape import AttentionShape
from paceline.engine.kv_storage import FeaturesInOrder
from paceline.engine.paged.pool import BlockPool

PAGE_SIZE = 256
"""Tokens of a block."""
MAX_SCRATCH_BLOCKS = 64
CELLS_PER_SCRATCH_BLOCK = 16
"""Scratch is a sixteenth of the pool at most: with less, trees take more launches, not more
room."""


class PagedSequence:
    """The blocks of one sequence, first to last. They are free when the last reference goes."""

    def __init__(self, storage: "PagedStorage", num_blocks: int) -> None:
        self.blocks: list[int] = []
        self._storage = storage
        self.blocks.extend(storage.pool.take(num_blocks))

    def __del__(self) -> None:
        self._storage.pool.release(self.blocks)

    def slots(self, start: int, end: int) -> list[int]:
        """Where the tokens at these positions stand."""
        return slots_in(self.blocks, start, end)

    def feature_rows(self, start: int, end: int) -> Tensor:
        """The features `[end - start, feature_size]` of these tokens."""
        return self._storage.features[self._storage.index(self.slots(start, end))]

    def keep_features(self, start: int, rows: Tensor) -> None:
        """Keep features `[N, feature_size]` for the tokens from `start` on."""
        slots = self._storage.index(self.slots(start, start + len(rows)))
        self._storage.features.index_copy_(0, slots, rows)


@dataclass(eq=False, slots=True, weakref_slot=True)
class PagedTree(FeaturesInOrder):
    """What a pass computed for the tokens of a tree, in the tree's order."""

    key_value: Tensor
    """`[num_layers, N, 2, num_kv_heads, head_dim]`."""
    features: Tensor
    """`[N, feature_size]`."""


PagedKV = PagedSequence | PagedTree


class PagedStorage:
    """The pool of one model, with room for `num_cells` blocks of sequences."""

    def __init__(
        self,
        shape: AttentionShape,
        dtype: torch.dtype,
        num_cells: int,
        feature_size: int = 0,
        device: torch.device | str = "cpu",
        num_scratch: int | None = None,
    ) -> None:
        if num_scratch is None:
            num_scratch = min(MAX_SCRATCH_BLOCKS, -(-num_cells // CELLS_PER_SCRATCH_BLOCK))
        self.pool = BlockPool(num_cells)
        self.scratch = range(num_cells, num_cells + num_scratch)
        """Blocks that a pass may write whatever it likes into."""
        self.dummy = num_cells + num_scratch
        """The block whose content means nothing, ever."""
        num_blocks = self.dummy + 1
        heads = (shape.num_kv_heads, shape.head_dim)
        self.blocks = torch.zeros(
            (shape.num_layers, 2, num_blocks, PAGE_SIZE, *heads), dtype=dtype, device=device
        )
        """`[num_layers, 2, num_blocks, PAGE_SIZE, num_kv_heads, head_dim]`; 2: keys and values."""
        self.slots = self.blocks.flatten(2, 3)
        """The same as `[num_layers, 2, num_blocks * PAGE_SIZE, num_kv_heads, head_dim]`."""
        self.features = torch.zeros(
            (num_blocks * PAGE_SIZE, feature_size), dtype=torch.float16, device=device
        )
        """`[num_blocks * PAGE_SIZE, feature_size]`."""

    @property
    def cell_size(self) -> int:
        """Tokens per cell."""
        return PAGE_SIZE

    def index(self, numbers: Sequence[int]) -> Tensor:
        """Numbers of slots on the device, to index with; nobody waits for them."""
        device = self.blocks.device
        pinned = torch.tensor(numbers, dtype=torch.long, pin_memory=device.type == "cuda")
        return pinned.to(device, non_blocking=True)

    def allocate(self, num_cells: int) -> PagedKV:
        """A new sequence."""
        return PagedSequence(self, num_cells)

    def allocate_tokens(self, room: int) -> PagedKV:
        """Room for the tokens of a tree, outside of the pool: they are few, and soon gone."""
        num_layers, _, _, num_kv_heads, head_dim = self.slots.shape
        shape = (num_layers, room, 2, num_kv_heads, head_dim)
        return PagedTree(
            self.slots.new_zeros(shape), self.features.new_zeros(room, self.features.shape[1])
        )

    def grow(self, storage: PagedKV, num_cells: int) -> PagedKV:
        """The same sequence with so many cells."""
        assert isinstance(storage, PagedSequence)
        storage.blocks.extend(self.pool.take(num_cells - len(storage.blocks)))
        return storage

    def copy_prefix(self, source: PagedKV, target: PagedKV, num_tokens: int) -> None:
        """Share the full blocks of the first `num_tokens` tokens, copy the rest of the last one."""
        assert isinstance(source, PagedSequence) and isinstance(target, PagedSequence)
        num_full, num_rest = divmod(num_tokens, PAGE_SIZE)
        shared = source.blocks[:num_full]
        self.pool.share(shared)
        self.pool.release(target.blocks[:num_full])
        target.blocks[:num_full] = shared
        if num_rest:
            self.make_writable(target, num_full * PAGE_SIZE, num_tokens)
            self.copy_block(source.blocks[num_full], target.blocks[num_full], num_rest)

    def copy_path(
        self, tree: PagedKV, path: Sequence[int], target: PagedKV, num_tokens: int
    ) -> None:
        """Copy what stands for these tokens of a tree behind the first `num_tokens` tokens."""
        assert isinstance(tree, PagedTree) and isinstance(target, PagedSequence)
        end = num_tokens + len(path)
        self.make_writable(target, num_tokens, end)
        rows, slots = self.index(path), self.index(target.slots(num_tokens, end))
        self.slots.index_copy_(2, slots, tree.key_value[:, rows].transpose(1, 2))
        self.features.index_copy_(0, slots, tree.features[rows])

    def make_writable(self, sequence: PagedSequence, start: int, end: int) -> None:
        """Let nobody else hold the blocks of these positions; what stands before them stays."""
        for place in range(start // PAGE_SIZE, -(-end // PAGE_SIZE)):
            block = sequence.blocks[place]
            if self.pool.is_shared(block):
                (own,) = self.pool.take(1)
                self.copy_block(block, own, max(0, start - place * PAGE_SIZE))
                self.pool.release([block])
                sequence.blocks[place] = own

    def copy_block(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first tokens of a block."""
        self.blocks[:, :, target, :num_tokens].copy_(self.blocks[:, :, source, :num_tokens])
        old, new = source * PAGE_SIZE, target * PAGE_SIZE
        self.features[new : new + num_tokens].copy_(self.features[old : old + num_tokens])


def slots_in(blocks: Sequence[int], start: int, end: int) -> list[int]:
    """The slots of the positions from `start` up to `end` in a sequence of these blocks."""
    return [
        blocks[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE
        for position in range(start, end)
    ]
