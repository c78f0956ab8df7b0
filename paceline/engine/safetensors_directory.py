"""Single tensors out of a checkpoint directory, without reading the rest.

A checkpoint is one `model.safetensors`, by that or another name, or the files that its index lists.
Knows nothing about what the tensors are for.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from paceline.errors import InvalidConfig

WEIGHTS_FILE = "model.safetensors"


class TensorFiles:
    """The tensors of one directory by name; `what` begins the sentence of an error."""

    def __init__(self, what: str, directory: Path, weights_file: str = WEIGHTS_FILE) -> None:
        """Raises `InvalidConfig` when there are no safetensors or they cannot be read."""
        self._what = what
        self._files = _files(what, directory, weights_file)

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


def _index(directory: Path, weights_file: str) -> Path:
    return directory / f"{weights_file}.index.json"


def _files(what: str, directory: Path, weights_file: str) -> Mapping[str, Path]:
    """The file of every tensor."""
    index = _index(directory, weights_file)
    try:
        if index.is_file():
            return _indexed(directory, json.loads(index.read_text()))
        path = directory / weights_file
        if path.is_file():
            with safe_open(path, framework="pt") as file:
                return dict.fromkeys(file.keys(), path)
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise InvalidConfig(f"{what}: its safetensors cannot be read: {error}") from None
    raise InvalidConfig(f"{what}: the directory {str(directory)!r} has no {weights_file}")


def _indexed(directory: Path, index: Any) -> Mapping[str, Path]:
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or any(
        type(file) is not str for file in weight_map.values()
    ):
        raise ValueError("the index has no weight_map from tensors to files")
    return {name: directory / file for name, file in weight_map.items()}
