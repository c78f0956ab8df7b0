"""A rank that is not the first: does what rank 0 says, until that says that it stops.

Knows nothing about sequences; its storages have the numbers that rank 0 gave them.
"""

from collections.abc import Sequence
from typing import Any

from paceline.engine.pass_plan import PassPlan, PlannedRows, PlannedTree
from paceline.engine.pass_runner import PassRunner
from paceline.engine.ranks.group import RankGroup
from paceline.engine.ranks.messages import Kind, carry_out, decoded


class Follower:
    """One process's share of a target."""

    def __init__(self, runner: PassRunner, group: RankGroup) -> None:
        """Wait until all ranks could run a pass; raises what `RankGroup.meet` raises."""
        group.meet()
        group.least(int(runner.has_exact_rows))
        self._runner = runner
        self._group = group
        self._storages = Storages(runner.storage)
        self._was_told_to_stop = False

    def run(self) -> None:
        """Return when rank 0 stops; raises `GroupBroken` when it or another rank is lost."""
        while True:
            kind, *words = self._group.receive()
            match Kind(kind):
                case Kind.PASS:
                    num_notes = words[0]
                    carry_out(words[1 : 1 + num_notes], self._storages)
                    self._runner.run(self._storages.found(decoded(words[1 + num_notes :])))
                case Kind.TICK:
                    self._group.states(int(self._was_told_to_stop))
                case Kind.STOP:
                    return

    def ask_to_stop(self) -> None:
        """Let rank 0 know, within seconds, that this rank should end. For any thread."""
        self._was_told_to_stop = True


class Storages:
    """A rank's storages by rank 0's numbers."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self.held: dict[int, Any] = {}
        """Those that rank 0 has not let go of."""

    def allocate(self, number: int, num_cells: int) -> None:
        """New storage of so many cells."""
        self.held[number] = self._storage.allocate(num_cells)

    def allocate_tree(self, number: int, num_tokens: int) -> None:
        """New storage for the tokens of a tree."""
        self.held[number] = self._storage.allocate_tokens(num_tokens)

    def grow(self, number: int, grown: int, num_cells: int) -> None:
        """Let one have so many cells."""
        self.held[grown] = self._storage.grow(self.held[number], num_cells)

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the KV of the first `num_tokens` tokens."""
        self._storage.copy_prefix(self.held[source], self.held[target], num_tokens)

    def copy_path(self, tree: int, target: int, num_tokens: int, path: Sequence[int]) -> None:
        """Copy the KV of these tokens of a tree behind the first `num_tokens` tokens."""
        self._storage.copy_path(self.held[tree], path, self.held[target], num_tokens)

    def drop(self, number: int) -> None:
        """Let go of one."""
        del self.held[number]

    def found(self, plan: PassPlan[int]) -> PassPlan[Any]:
        """The plan with the storages in place of their numbers."""
        return PassPlan(
            plan.token_ids,
            plan.positions,
            plan.wanted_rows,
            [PlannedRows(self.held[rows.storage], *rows[1:]) for rows in plan.sequences],
            [PlannedTree(self.held[tree.storage], *tree[1:]) for tree in plan.trees],
        )
