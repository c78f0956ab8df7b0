"""A pass in plain numbers: which tokens run, where they stand, and where their keys and values go.

Whoever has the plan, the weights and the storages can run the pass: another layout of the KV, or
another process that holds a share of the model. Knows nothing about how a pass is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from paceline.engine.model import PassSequence

StorageT = TypeVar("StorageT")
StorageT_co = TypeVar("StorageT_co", covariant=True)


class PlannedRows(NamedTuple, Generic[StorageT]):
    """Rows that follow one another in a sequence, of a tree those of one branch."""

    storage: StorageT
    first_row: int
    """Of the pass."""
    position: int
    """Of the first one in the sequence."""
    num_rows: int


class PlannedTree(NamedTuple, Generic[StorageT]):
    """All rows of a tree, whose branches take each other's places in the sequence's storage."""

    storage: StorageT
    """Where they stay, one behind the other."""
    first_row: int
    num_rows: int


@dataclass(slots=True)
class PassPlan(Generic[StorageT]):
    """One pass. Branches of one tree follow one another in `sequences`, in the tree's order."""

    token_ids: list[int] = field(default_factory=list)
    """Of each row."""
    positions: list[int] = field(default_factory=list)
    """Of each row."""
    wanted_rows: list[int] = field(default_factory=list)
    """Those whose logits are wanted."""
    sequences: list[PlannedRows[StorageT]] = field(default_factory=list)
    trees: list[PlannedTree[StorageT]] = field(default_factory=list)


class TreeRoom(Protocol[StorageT_co]):
    """Makes the storages of trees."""

    def allocate_tokens(self, room: int) -> StorageT_co:
        """Storage for so many tokens."""


def plan_pass(batch: Sequence[PassSequence], room: TreeRoom[StorageT]) -> PassPlan[StorageT]:
    """The plan of a batch; gives its trees their storages, and drops those of earlier passes."""
    plan: PassPlan[StorageT] = PassPlan()
    for part in batch:
        first_row = len(plan.token_ids)
        for first, place, num_rows in part.branches():
            assert num_rows > 0, "a part of a pass has tokens"
            start = part.kv.num_tokens + place
            plan.sequences.append(PlannedRows(part.kv.storage, first_row + first, start, num_rows))
            plan.positions.extend(range(start, start + num_rows))
        plan.token_ids.extend(part.token_ids)
        end_row = len(plan.token_ids)
        plan.wanted_rows.extend(range(end_row - part.num_logits, end_row))
        part.kv.tree = None
        if part.tree:
            num_rows = len(part.tree)
            part.kv.tree = tree = room.allocate_tokens(num_rows)
            plan.trees.append(PlannedTree(tree, end_row - num_rows, num_rows))
    return plan
