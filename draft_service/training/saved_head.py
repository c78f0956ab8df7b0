"""Writes the directory of a trained head, whatever its layout: there whole or not at all."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.engine.cache_directory import made_once
from paceline.engine.safetensors_directory import WEIGHTS_FILE
from paceline.errors import InvalidConfig
from paceline.heads.config_file import CONFIG_FILE

WriteMore = Callable[[Path], None]
"""Adds to a directory what belongs beside config and weights."""


def save_head(
    directory: Path, config: Mapping[str, Any], tensors: dict[str, Tensor], write_more: WriteMore
) -> Path:
    """`directory` with config, safetensors and what `write_more` adds; raises `InvalidConfig`."""
    check_numbers(tensors)

    def write(unfinished: Path) -> None:
        (unfinished / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
        save_file(tensors, unfinished / WEIGHTS_FILE)
        write_more(unfinished)

    return made_once(directory, write)


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
