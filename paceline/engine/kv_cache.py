"""Room for the KV of sequences, and its reuse by content.

Each sequence has storage that grows by cells: contiguous on a CPU, whose attention wants contiguous
keys, blocks of a pool for a paged kernel. Content is found again by a chain hash over full blocks
of tokens, salted per tenant, and copied on a hit, or shared. A released sequence counts as free but
keeps its content until its cells are needed, least recently used first.

Knows nothing about tensors: `KVStorage` does. Not thread-safe; the device thread owns it.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

StorageT = TypeVar("StorageT")

BLOCK_SIZE = 16
"""Tokens per hashed block: small enough to share most of a common system prompt."""


class KVStorage(Protocol[StorageT]):
    """The memory behind a cache, in cells of `cell_size` tokens."""

    @property
    def cell_size(self) -> int:
        """Tokens per cell."""

    def allocate(self, num_cells: int) -> StorageT:
        """New storage; its content is finite but otherwise meaningless."""

    def grow(self, storage: StorageT, num_cells: int) -> StorageT:
        """The same content with room for `num_cells` cells."""

    def copy_prefix(self, source: StorageT, target: StorageT, num_tokens: int) -> None:
        """Copy the KV of the first `num_tokens` tokens."""

    def copy_path(
        self, tree: StorageT, path: Sequence[int], target: StorageT, num_tokens: int
    ) -> None:
        """Copy the KV of these tokens of a tree to the places behind the first `num_tokens`."""


@dataclass(eq=False, slots=True)
class KVSequence(Generic[StorageT]):
    """The KV of one sequence: `num_tokens` valid tokens in `storage`."""

    storage: StorageT
    salt: str
    num_cells: int
    num_tokens: int = 0
    block_hashes: list[bytes] = field(default_factory=list)
    """Chain hashes of the full blocks that are registered for reuse."""
    tree: StorageT | None = None
    """What the last pass computed of a tree behind the tokens, in the tree's order."""


class KVCache(Generic[StorageT]):
    """A bounded pool of cells."""

    def __init__(self, storage: KVStorage[StorageT], num_cells: int) -> None:
        self._storage = storage
        self._num_cells = num_cells
        self._running_cells = 0
        self._retained: OrderedDict[int, KVSequence[StorageT]] = OrderedDict()
        self._retained_cells = 0
        self._holders: dict[bytes, KVSequence[StorageT]] = {}
        self.num_queried_tokens = 0
        """Tokens of sequences that were looked up, and of those below the ones that were found."""
        self.num_hit_tokens = 0
        self.num_evictions = 0
        """Ended sequences whose content was forgotten, since the room was needed."""

    @property
    def capacity(self) -> int:
        """Tokens that fit when one sequence has the whole pool."""
        return self._num_cells * self._storage.cell_size

    @property
    def num_used(self) -> int:
        """Tokens of room held by running sequences."""
        return self._running_cells * self._storage.cell_size

    @property
    def num_retained(self) -> int:
        """Tokens of room, counted as free, with content of ended sequences."""
        return self._retained_cells * self._storage.cell_size

    def open(self, token_ids: Sequence[int], salt: str) -> "KVSequence[StorageT]":
        """KV for a sequence that begins with `token_ids`, with what is cached of it already there.

        At least the last token is left to compute. Takes cells only for what it found.
        """
        found = self._find(token_ids, salt)
        self.num_queried_tokens += len(token_ids)
        if found is None:
            return KVSequence(self._storage.allocate(0), salt, 0)
        holder, num_tokens = found
        if id(holder) in self._retained and num_tokens > holder.num_tokens - BLOCK_SIZE:
            self._retained.pop(id(holder))
            self._retained_cells -= holder.num_cells
            self._running_cells += holder.num_cells
            self.truncate(holder, num_tokens)
            self.num_hit_tokens += num_tokens
            return holder
        if id(holder) in self._retained:
            self._retained.move_to_end(id(holder))
        kv = KVSequence(self._storage.allocate(0), salt, 0)
        if self._take(kv, num_tokens, keep=holder):
            self._storage.copy_prefix(holder.storage, kv.storage, num_tokens)
            kv.num_tokens = num_tokens
            self.num_hit_tokens += num_tokens
        return kv

    def reserve(self, kv: "KVSequence[StorageT]", num_tokens: int) -> bool:
        """Make room for `num_tokens` tokens in all; False, and nothing changed, if it is full."""
        return self._take(kv, num_tokens, keep=None)

    def keep_path(self, kv: "KVSequence[StorageT]", path: Sequence[int]) -> None:
        """Take these tokens of the tree, each the parent of the next, as what follows; drop it."""
        assert kv.tree is not None, "no tree was run"
        self._storage.copy_path(kv.tree, path, kv.storage, kv.num_tokens)
        kv.num_tokens += len(path)
        kv.tree = None

    def truncate(self, kv: "KVSequence[StorageT]", num_tokens: int) -> None:
        """Forget everything after the first `num_tokens` tokens; the room stays."""
        kv.tree = None
        kv.num_tokens = min(kv.num_tokens, num_tokens)
        num_blocks = kv.num_tokens // BLOCK_SIZE
        for block_hash in kv.block_hashes[num_blocks:]:
            if self._holders.get(block_hash) is kv:
                del self._holders[block_hash]
        del kv.block_hashes[num_blocks:]

    def register(self, kv: "KVSequence[StorageT]", token_ids: Sequence[int]) -> None:
        """Offer the full blocks of committed tokens for reuse; `token_ids` are the sequence's."""
        num_blocks = kv.num_tokens // BLOCK_SIZE
        if len(kv.block_hashes) >= num_blocks:
            return
        start = len(kv.block_hashes)
        previous = kv.block_hashes[-1] if kv.block_hashes else kv.salt.encode()
        for index in range(start, num_blocks):
            block = token_ids[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE]
            previous = _block_hash(previous, block)
            kv.block_hashes.append(previous)
            self._holders.setdefault(previous, kv)

    def release(self, kv: "KVSequence[StorageT]") -> None:
        """The sequence has ended: its cells count as free, its registered content can be found."""
        self._running_cells -= kv.num_cells
        if not kv.block_hashes:
            self._drop(kv)
            return
        for block_hash in kv.block_hashes:
            self._holders.setdefault(block_hash, kv)
        self._retained[id(kv)] = kv
        self._retained_cells += kv.num_cells

    def _find(
        self, token_ids: Sequence[int], salt: str
    ) -> "tuple[KVSequence[StorageT], int] | None":
        found = None
        previous = salt.encode()
        for index in range((len(token_ids) - 1) // BLOCK_SIZE):
            block = token_ids[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE]
            previous = _block_hash(previous, block)
            holder = self._holders.get(previous)
            if holder is None:
                break
            found = holder, (index + 1) * BLOCK_SIZE
        return found

    def _take(
        self,
        kv: "KVSequence[StorageT]",
        num_tokens: int,
        keep: "KVSequence[StorageT] | None",
    ) -> bool:
        num_cells = -(-num_tokens // self._storage.cell_size)
        missing = num_cells - kv.num_cells
        if missing <= 0:
            return True
        kept_cells = keep.num_cells if keep is not None and id(keep) in self._retained else 0
        if self._running_cells + missing + kept_cells > self._num_cells:
            return False
        while self._running_cells + self._retained_cells + missing > self._num_cells:
            self._forget_oldest(keep)
        kv.storage = self._storage.grow(kv.storage, num_cells)
        kv.num_cells = num_cells
        self._running_cells += missing
        return True

    def _forget_oldest(self, keep: "KVSequence[StorageT] | None") -> None:
        oldest = next(kv for kv in self._retained.values() if kv is not keep)
        del self._retained[id(oldest)]
        self._retained_cells -= oldest.num_cells
        self.num_evictions += 1
        self.truncate(oldest, 0)
        self._drop(oldest)

    def _drop(self, kv: "KVSequence[StorageT]") -> None:
        """Let go of what nobody can find any more, whoever still has the sequence."""
        kv.storage, kv.num_cells = self._storage.allocate(0), 0


def _block_hash(previous: bytes, token_ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(previous + array("I", token_ids).tobytes(), digest_size=16).digest()
