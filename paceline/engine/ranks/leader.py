"""Rank 0: plans passes for all, and keeps the others' storages like its own.

Whatever it does to a storage is noted, and goes to the others in front of the next pass: they do
the same in the same order before they run it.
"""

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from paceline.engine.pass_plan import PassPlan, PlannedRows, PlannedTree
from paceline.engine.pass_runner import PassRunner
from paceline.engine.ranks.group import RankGroup
from paceline.engine.ranks.messages import Command, Kind, encoded
from paceline.engine.ranks.place import GroupBroken


class MirroredStorage:
    """Rank 0's storages, of any layout, and notes for the others of what becomes of them."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self._counter = itertools.count(1)
        self._free_numbers: list[int] = []
        self._numbers = weakref.WeakKeyDictionary[Any, int]()
        self._notes: list[int] = []

    @property
    def cell_size(self) -> int:
        """Tokens per cell."""
        cell_size: int = self._storage.cell_size
        return cell_size

    @property
    def num_alive(self) -> int:
        """How many storages are in use."""
        return len(self._numbers)

    def number(self, storage: Any) -> int:
        """By which the other ranks know it."""
        return self._numbers[storage]

    def allocate(self, num_cells: int) -> Any:
        """New storage."""
        storage = self._storage.allocate(num_cells)
        self._notes += [Command.ALLOCATE, self._numbered(storage), num_cells]
        return storage

    def allocate_tokens(self, room: int) -> Any:
        """New storage for the tokens of a tree."""
        storage = self._storage.allocate_tokens(room)
        self._notes += [Command.ALLOCATE_TREE, self._numbered(storage), room]
        return storage

    def grow(self, storage: Any, num_cells: int) -> Any:
        """The same content with room for `num_cells` cells."""
        grown = self._storage.grow(storage, num_cells)
        number = self.number(storage)
        new_number = number if grown is storage else self._numbered(grown)
        self._notes += [Command.GROW, number, new_number, num_cells]
        return grown

    def copy_prefix(self, source: Any, target: Any, num_tokens: int) -> None:
        """Copy KV and features of the first `num_tokens` tokens."""
        self._storage.copy_prefix(source, target, num_tokens)
        numbers = self.number(source), self.number(target)
        self._notes += [Command.COPY_PREFIX, *numbers, num_tokens]

    def copy_path(self, tree: Any, path: Sequence[int], target: Any, num_tokens: int) -> None:
        """Copy KV and features of these tokens of a tree behind the first `num_tokens` tokens."""
        self._storage.copy_path(tree, path, target, num_tokens)
        numbers = self.number(tree), self.number(target)
        self._notes += [Command.COPY_PATH, *numbers, num_tokens, len(path), *path]

    def taken_notes(self) -> list[int]:
        """The commands since the last time."""
        notes, self._notes = self._notes, []
        return notes

    def _numbered(self, storage: Any) -> int:
        number = self._free_numbers.pop() if self._free_numbers else next(self._counter)
        self._numbers[storage] = number
        # The cache lets go of storages in many places; whoever is the last is heard of here. The
        # others do so at the same place of the order, so that what is free here is free there.
        weakref.finalize(storage, self._drop, number).atexit = False
        return number

    def _drop(self, number: int) -> None:
        self._notes += [Command.DROP, number]
        self._free_numbers.append(number)


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

    def run(self, plan: PassPlan[Any]) -> tuple[Tensor, Tensor]:
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

    def _numbered(self, plan: PassPlan[Any]) -> PassPlan[int]:
        number = self.storage.number
        return PassPlan(
            plan.token_ids,
            plan.positions,
            plan.wanted_rows,
            [PlannedRows(number(rows.storage), *rows[1:]) for rows in plan.sequences],
            [PlannedTree(number(tree.storage), *tree[1:]) for tree in plan.trees],
        )
