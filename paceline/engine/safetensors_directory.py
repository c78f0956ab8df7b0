"""Single tensors out of a checkpoint directory, without reading the rest.

A checkpoint is one `model.safetensors` or the files that its index lists. Knows nothing about what
the tensors are for.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from paceline.errors import InvalidConfig

WEIGHTS_FILE = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
PICKLE_FILE = "pytorch_model.bin"


class TensorFiles:
    """The tensors of one directory by name; `what` begins the sentence of an error."""

    def __init__(self, what: str, directory: Path) -> None:
        """Raises `InvalidConfig` when there are no safetensors or they cannot be read."""
        self._what = what
        self._files = _files(what, directory)

    @property
    def names(self) -> set[str]:
        """All tensors."""
        return set(self._files)

    def read(self, name: str) -> Tensor:
        """One tensor, as it was saved."""
        try:
            with safe_open(self._files[name], framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise InvalidConfig(
                f"{self._what}: the tensor {name} cannot be read: {error}"
            ) from None
        return tensor


def _files(what: str, directory: Path) -> Mapping[str, Path]:
    """The file of every tensor."""
    index = directory / WEIGHTS_INDEX
    try:
        if index.is_file():
            weight_map = json.loads(index.read_text())["weight_map"]
            return {name: directory / file for name, file in weight_map.items()}
        path = directory / WEIGHTS_FILE
        if path.is_file():
            with safe_open(path, framework="pt") as file:
                return dict.fromkeys(file.keys(), path)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise InvalidConfig(f"{what}: its safetensors cannot be read: {error}") from None
    if (directory / PICKLE_FILE).is_file():
        raise InvalidConfig(
            f"{what}: its weights are a pickle, {PICKLE_FILE}, which could run code when it is "
            f"read; expected {WEIGHTS_FILE} (save the same tensors with safetensors)"
        )
    raise InvalidConfig(f"{what}: the directory {str(directory)!r} has no {WEIGHTS_FILE}")
