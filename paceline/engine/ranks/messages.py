"""What rank 0 tells the others, in numbers: what to do with storages, and which pass to run.

Storages are known by numbers that rank 0 gives them. Knows nothing about tensors.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Protocol

from paceline.engine.pass_plan import PassPlan, PlannedRows, PlannedTree


class Kind(IntEnum):
    """The first number of a message."""

    PASS = 1
    """Do what the commands say, and run a pass."""
    TICK = 2
    """Say how you are."""
    STOP = 3
    """Nothing more will come."""


class Command(IntEnum):
    """What happens to a storage, and the numbers behind."""

    ALLOCATE = 1
    """Its number, cells."""
    ALLOCATE_TREE = 2
    """Its number, tokens."""
    GROW = 3
    """Its number, that of what it becomes, which may be the same, cells."""
    COPY_PREFIX = 4
    """From where, to where, tokens."""
    COPY_PATH = 5
    """The tree's, the sequence's, tokens before, how many are copied, their indices."""
    DROP = 6
    """Its number."""


class StorageCommands(Protocol):
    """Does what commands say."""

    def allocate(self, number: int, num_cells: int) -> None: ...

    def allocate_tree(self, number: int, num_tokens: int) -> None: ...

    def grow(self, number: int, grown: int, num_cells: int) -> None: ...

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None: ...

    def copy_path(self, tree: int, target: int, num_tokens: int, path: Sequence[int]) -> None: ...

    def drop(self, number: int) -> None: ...


def carry_out(words: Sequence[int], storages: StorageCommands) -> None:
    """Do what encoded commands say, in their order."""
    numbers = iter(words)
    for command in numbers:
        match Command(command):
            case Command.ALLOCATE:
                storages.allocate(next(numbers), next(numbers))
            case Command.ALLOCATE_TREE:
                storages.allocate_tree(next(numbers), next(numbers))
            case Command.GROW:
                storages.grow(next(numbers), next(numbers), next(numbers))
            case Command.COPY_PREFIX:
                storages.copy_prefix(next(numbers), next(numbers), next(numbers))
            case Command.COPY_PATH:
                tree, target, num_tokens = next(numbers), next(numbers), next(numbers)
                storages.copy_path(tree, target, num_tokens, _listed(numbers))
            case Command.DROP:
                storages.drop(next(numbers))


def encoded(plan: PassPlan[int]) -> list[int]:
    """A plan in numbers; `decoded` is the inverse."""
    words: list[int] = []
    for numbers in (plan.token_ids, plan.positions, plan.wanted_rows):
        words += [len(numbers), *numbers]
    for planned in (plan.sequences, plan.trees):
        words.append(len(planned))
        for item in planned:
            words += item
    return words


def decoded(words: Sequence[int]) -> PassPlan[int]:
    """The plan that `encoded` made these numbers of."""
    numbers = iter(words)
    plan = PassPlan[int](_listed(numbers), _listed(numbers), _listed(numbers))
    for _ in range(next(numbers)):
        plan.sequences.append(
            PlannedRows(next(numbers), next(numbers), next(numbers), next(numbers))
        )
    for _ in range(next(numbers)):
        plan.trees.append(PlannedTree(next(numbers), next(numbers), next(numbers)))
    return plan


def _listed(numbers: Iterator[int]) -> list[int]:
    """As many as the first one says."""
    return [next(numbers) for _ in range(next(numbers))]
