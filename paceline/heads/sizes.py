"""Whether a head was made for a target of this shape."""

from collections.abc import Iterable
from typing import Literal, NamedTuple, Protocol

from paceline.errors import InvalidConfig


class Size(NamedTuple):
    """A size that a head and its target must have in common."""

    key: str
    """In the head's config."""
    value: int
    what: Literal["hidden_size", "vocab_size"]
    """The target's name of the same."""


class TargetSizes(Protocol):
    """What is known of the model that a head was made for."""

    @property
    def name(self) -> str: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int:
        """Rows of its embedding."""
        ...


def check_sizes(head: str, target: TargetSizes, sizes: Iterable[Size]) -> None:
    """Raise `InvalidConfig` for a head of another shape."""
    for key, found, what in sizes:
        expected = target.hidden_size if what == "hidden_size" else target.vocab_size
        if found != expected:
            raise InvalidConfig(
                f"head {head!r}: its {key} is {found}; expected {expected}, the {what} of the "
                f"model {target.name!r}"
            )
