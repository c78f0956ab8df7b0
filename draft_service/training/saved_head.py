"""Writes the directory of a trained head, whatever its layout: there whole or not at all."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.engine.cache_directory import made_once
from paceline.engine.safetensors_directory import WEIGHTS_FILE, TensorFiles
from paceline.errors import InvalidConfig
from paceline.heads.config_file import CONFIG_FILE, read_config_file

WriteMore = Callable[[Path], None]
"""Adds to a directory what belongs beside config and weights."""


def save_head(
    directory: Path, config: Mapping[str, Any], tensors: dict[str, Tensor], write_more: WriteMore
) -> Path:
    """`directory` with config, safetensors and what `write_more` adds; raises `InvalidConfig`."""
    check_numbers(tensors)
    if directory.is_dir():
        check_saved(directory, config, tensors)

    def write(unfinished: Path) -> None:
        (unfinished / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
        save_file(tensors, unfinished / WEIGHTS_FILE)
        write_more(unfinished)

    return made_once(directory, write)


def check_saved(
    directory: Path, config: Mapping[str, Any] | None, tensors: Mapping[str, Tensor]
) -> None:
    """Raise `InvalidConfig` unless `directory` holds this config and tensors like these.

    For a head that was finished before. That its numbers are the same ones is not looked at.
    """
    way_out = "without it, the same command writes it again"
    try:
        found = read_config_file(str(directory))
        files = TensorFiles(f"head {str(directory)!r}", directory)
        kinds = {name: _kind(files.read(name)) for name in files.names}
    except InvalidConfig as error:
        raise InvalidConfig(f"{error.message}; {way_out}") from None
    wanted = found if config is None else json.loads(json.dumps(config))
    if found != wanted or kinds != {name: _kind(tensor) for name, tensor in tensors.items()}:
        raise InvalidConfig(f"{str(directory)!r} is not what this training makes; {way_out}")


def _kind(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def half(tensor: Tensor) -> Tensor:
    """As it is saved: in half precision, on the CPU."""
    return tensor.detach().half().cpu().contiguous()


def check_numbers(tensors: Mapping[str, Tensor]) -> None:
    """Raise `InvalidConfig` for what cannot be saved in half precision: it could not be loaded."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InvalidConfig(
                f"the trained {name!r} holds numbers that are too large for half precision; "
                "expected a lower learning_rate"
            )
