"""The state of a training on disk, and the settings that it belongs to.

Whatever is killed at whatever moment, the last whole checkpoint is there; going on from it ends in
the same bits as never having stopped.
"""

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draft_service.training.atomic_files import write_text_whole, write_whole
from paceline.errors import InvalidConfig, shown

MANIFEST_FILE = "training.json"
CHECKPOINT_FILE = "checkpoint.pt"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a training is."""

    num_steps: int
    """Steps that are done."""
    weights: dict[str, Tensor]
    optimizer: list[dict[str, Any]]


def save_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint of `directory`."""
    table = {
        "num_steps": checkpoint.num_steps,
        "weights": {name: tensor.detach() for name, tensor in checkpoint.weights.items()},
        "optimizer": checkpoint.optimizer,
    }
    write_whole(directory / CHECKPOINT_FILE, lambda file: torch.save(table, file))


def load_checkpoint(directory: Path, device: torch.device) -> Checkpoint | None:
    """The checkpoint of `directory`; None if there is none. Raises `InvalidConfig`."""
    path = directory / CHECKPOINT_FILE
    if not path.exists():
        return None
    try:
        return Checkpoint(**torch.load(path, map_location=device, weights_only=True))
    except (OSError, RuntimeError, EOFError, TypeError, pickle.UnpicklingError) as error:
        raise InvalidConfig(
            f"the checkpoint {str(path)!r} cannot be read: {error}; without it, the training "
            "begins anew"
        ) from None


def bind_directory(directory: Path, facts: Mapping[str, object]) -> None:
    """Note what decides the result in a new directory; compare it with an old one's note.

    Raises:
        InvalidConfig: the directory belongs to a training with another of these facts.
    """
    path = directory / MANIFEST_FILE
    wanted = json.loads(json.dumps(facts))
    if not path.exists():
        write_text_whole(path, json.dumps(wanted, indent=2) + "\n")
        return
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise InvalidConfig(f"{str(path)!r} is not JSON: {error}") from None
    for name, value in found.items():
        if value != wanted.get(name):
            raise InvalidConfig(
                f"{name} is {shown(wanted.get(name))}, but the training in {str(directory)!r} was "
                f"begun with {shown(value)}; expected the same, or another output"
            )
