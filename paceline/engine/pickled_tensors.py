"""The tensors of a pickle, for heads that were published before safetensors were usual.

Only where the settings allow it: torch's restricted reader admits tensors and plain containers and
runs no code of the file, but is far larger than a reader of safetensors.
"""

from pathlib import Path

import torch
from torch import Tensor

from paceline.errors import InvalidConfig


class PickledTensors:
    """The tensors of one file by name; `what` begins the sentence of an error."""

    def __init__(self, what: str, path: Path) -> None:
        """Raises `InvalidConfig` when it cannot be read or holds anything but tensors by name."""
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # of a damaged one the reader raises whatever it stumbles over
            raise InvalidConfig(
                f"{what}: its {path.name} cannot be read: {pickle_fault(error)}"
            ) from None
        if not isinstance(found, dict):
            raise InvalidConfig(
                f"{what}: its {path.name} holds a {type(found).__name__}; expected tensors by name"
            )
        for name, value in found.items():
            if not isinstance(name, str) or not isinstance(value, Tensor):
                raise InvalidConfig(
                    f"{what}: {name!r} in its {path.name} is a {type(value).__name__}; expected "
                    "tensors by name"
                )
            if value.layout != torch.strided or value.is_meta:
                raise InvalidConfig(
                    f"{what}: {name!r} in its {path.name} is a sparse or empty tensor; expected "
                    "one with all its numbers"
                )
        self._tensors: dict[str, Tensor] = {name: t.detach() for name, t in found.items()}

    @property
    def names(self) -> set[str]:
        """All tensors."""
        return set(self._tensors)

    def read(self, name: str) -> Tensor:
        """One tensor, as it was saved."""
        return self._tensors[name]


def pickle_fault(error: Exception) -> str:
    """What torch's restricted reader says is wrong, in a line, without advice to do without it."""
    said, is_refused, why = str(error).partition("WeightsUnpickler error:")
    if is_refused:
        return why.split("\n")[0].strip() or "it is no pickle of tensors, or a damaged one"
    return said.split("\n")[0] or type(error).__name__
