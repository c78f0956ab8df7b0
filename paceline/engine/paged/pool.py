"""Which blocks of a pool are free, and how many sequences hold each of the others.

Plain integers: knows nothing about tensors and about what a block is for. Not thread-safe.
"""

from collections.abc import Iterable


class BlockPool:
    """Blocks 0 to `num_blocks` - 1, all free at first."""

    def __init__(self, num_blocks: int) -> None:
        self._free = [*range(num_blocks)][::-1]
        self._num_holders = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def take(self, num_blocks: int) -> list[int]:
        """Free blocks, held once from now on; that there are so many is the caller's promise."""
        assert num_blocks <= len(self._free), "a cache counts at least the blocks that are held"
        taken = [self._free.pop() for _ in range(num_blocks)]
        for block in taken:
            self._num_holders[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more holder for each of them."""
        for block in blocks:
            assert self._num_holders[block] > 0, "nobody holds the block"
            self._num_holders[block] += 1

    def is_shared(self, block: int) -> bool:
        """Whether several hold it."""
        return self._num_holders[block] > 1

    def release(self, blocks: Iterable[int]) -> None:
        """One holder less for each of them; those without any are free at once."""
        for block in blocks:
            self._num_holders[block] -= 1
            assert self._num_holders[block] >= 0, "nobody holds the block"
            if not self._num_holders[block]:
                self._free.append(block)
