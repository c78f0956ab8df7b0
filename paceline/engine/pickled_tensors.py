"""The tensors of a pickle, for heads that were published before safetensors were usual.

Only where the settings allow it: torch's restricted reader admits tensors and plain containers and
runs no code of the file, but is far larger than a reader of safetensors.
"""

import pickle
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
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            raise InvalidConfig(f"{what}: its {path.name} cannot be read: {reason}") from None
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
        self._tensors: dict[str, Tensor] = found

    @property
    def names(self) -> set[str]:
        """All tensors."""
        return set(self._tensors)

    def read(self, name: str) -> Tensor:
        """One tensor, as it was saved."""
        return self._tensors[name]
