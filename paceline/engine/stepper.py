"""What a device thread runs: passes for sequences, and calls to the ranks that share its model.

Knows nothing about threads and callers.
"""

from typing import Protocol, TypeVar

from paceline.rounds import WorkerLoad


class OfSequence(Protocol):
    """A round or a result of one sequence."""

    @property
    def sequence_id(self) -> str:
        """The sequence."""


RoundT_contra = TypeVar("RoundT_contra", bound=OfSequence, contravariant=True)
ResultT = TypeVar("ResultT", bound=OfSequence)


class Stepper(Protocol[RoundT_contra, ResultT]):
    """What runs on the device thread."""

    def accept(self, round: RoundT_contra, /, waited_s: float) -> ResultT | None:
        """Take a round that has waited so long; an answer at once means that it needs no pass."""

    def close(self, sequence_id: str) -> None:
        """The sequence has ended."""

    def step(self) -> list[ResultT] | None:
        """Run one pass; None when nothing that waits can get one yet."""

    def abandon(self, message: str) -> list[ResultT]:
        """A pass failed: answer what waits with errors and start afresh."""

    def is_waiting(self, sequence_id: str) -> bool:
        """Whether the sequence waits for a pass."""

    @property
    def has_work(self) -> bool:
        """Whether anything waits for a pass."""

    @property
    def load(self) -> WorkerLoad:
        """The state of the worker."""


class Ranks(Protocol):
    """The other processes that the model is shared with; called on the device thread."""

    def tick(self) -> bool:
        """Hear from every one; True when one was told to stop. Raises `GroupBroken`."""

    def stop(self) -> None:
        """Let them end."""
