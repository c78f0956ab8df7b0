"""Rank 0: plans passes for all, and keeps the others' storages like its own.

Whatever it does to a storage is noted, and goes to the others in front of the next pass: they do
the same in the same order before they run it.
"""

import itertools
import weakref
from collections.abc import Sequence

from torch import Tensor

from paceline.engine.kv_storage import SequenceStorage, TorchStorage
from paceline.engine.pass_plan import PassPlan, PlannedRows, PlannedTree
from paceline.engine.pass_runner import PassRunner
from paceline.engine.ranks.group import RankGroup
from paceline.engine.ranks.messages import Command, Kind, encoded
from paceline.engine.ranks.place import GroupBroken


class MirroredStorage:
    """Rank 0's storages, and notes for the others of what becomes of them."""

    def __init__(self, storage: TorchStorage) -> None:
        self._storage = storage
        self._counter = itertools.count(1)
        self._free_numbers: list[int] = []
        self._numbers = weakref.WeakKeyDictionary[SequenceStorage, int]()
        self._notes: list[int] = []
        self._dropped: list[int] = []

    @property
    def cell_size(self) -> int:
        """Tokens per cell."""
        return self._storage.cell_size

    @property
    def num_alive(self) -> int:
        """How many storages are in use."""
        return len(self._numbers)

    def number(self, storage: SequenceStorage) -> int:
        """By which the other ranks know it."""
        return self._numbers[storage]

    def allocate(self, num_cells: int) -> SequenceStorage:
        """New storage, all zeros."""
        return self.allocate_tokens(num_cells * self.cell_size)

    def allocate_tokens(self, room: int) -> SequenceStorage:
        """New storage for so many tokens, all zeros."""
        storage = self._storage.allocate_tokens(room)
        number = self._free_numbers.pop() if self._free_numbers else next(self._counter)
        self._numbers[storage] = number
        self._notes += [Command.ALLOCATE, number, room]
        # The cache lets go of storages in many places; whoever is the last is heard of here.
        weakref.finalize(storage, self._dropped.append, number).atexit = False
        return storage

    def grow(self, storage: SequenceStorage, num_cells: int) -> SequenceStorage:
        """The same content with room for `num_cells` cells."""
        grown = self.allocate(num_cells)
        self.copy_prefix(storage, grown, len(storage.features))
        return grown

    def copy_prefix(
        self, source: SequenceStorage, target: SequenceStorage, num_tokens: int
    ) -> None:
        """Copy KV and features of the first `num_tokens` tokens."""
        self._storage.copy_prefix(source, target, num_tokens)
        numbers = self.number(source), self.number(target)
        self._notes += [Command.COPY_PREFIX, *numbers, num_tokens]

    def copy_path(
        self, tree: SequenceStorage, path: Sequence[int], target: SequenceStorage, num_tokens: int
    ) -> None:
        """Copy KV and features of these tokens of a tree behind the first `num_tokens` tokens."""
        self._storage.copy_path(tree, path, target, num_tokens)
        numbers = self.number(tree), self.number(target)
        self._notes += [Command.COPY_PATH, *numbers, num_tokens, len(path), *path]

    def taken_notes(self) -> list[int]:
        """The commands since the last time; those that nobody uses any more go last."""
        notes, self._notes = self._notes, []
        while self._dropped:
            number = self._dropped.pop()
            notes += [Command.DROP, number]
            self._free_numbers.append(number)
        return notes


class LeadingRunner:
    """Has all ranks run each pass."""

    def __init__(self, runner: PassRunner, group: RankGroup) -> None:
        """Wait until all ranks could run one; raises what `RankGroup.meet` raises."""
        self._runner = runner
        self._group = group
        group.meet()
        self.has_exact_rows = bool(group.least(int(runner.has_exact_rows)))
        """Whether the rows of all ranks are exact."""
        self.storage = MirroredStorage(runner.storage)
        """Makes what the passes' keys and values are kept in."""

    def run(self, plan: PassPlan[SequenceStorage]) -> tuple[Tensor, Tensor]:
        """As `PassRunner.run`; raises `GroupBroken` if a rank is lost on the way."""
        try:
            notes = self.storage.taken_notes()
            self._group.send([Kind.PASS, len(notes), *notes, *encoded(self._numbered(plan))])
            return self._runner.run(plan)
        except GroupBroken:
            raise
        except Exception as error:
            # The others are in the middle of the pass, or lack a note, and cannot be called back.
            raise GroupBroken(f"rank 0 failed in the middle of a pass: {error!r}") from error

    def _numbered(self, plan: PassPlan[SequenceStorage]) -> PassPlan[int]:
        number = self.storage.number
        return PassPlan(
            plan.token_ids,
            plan.positions,
            plan.wanted_rows,
            [PlannedRows(number(rows.storage), *rows[1:]) for rows in plan.sequences],
            [PlannedTree(number(tree.storage), *tree[1:]) for tree in plan.trees],
        )
