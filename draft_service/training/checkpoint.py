"""The state of a training on disk, and the settings that it belongs to.

Whatever is killed at whatever moment, the last whole checkpoint is there; going on from it ends in
the same bits as never having stopped.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from draft_service.training.atomic_files import write_text_whole, write_whole
from paceline.engine.pickled_tensors import pickle_fault
from paceline.errors import InvalidConfig, shown

MANIFEST_FILE = "training.json"
CHECKPOINT_FILE = "checkpoint.pt"
HEAD_FOLDER = "head"
"""What is trained, below the output directory."""
_LOCK_FILE = ".lock"


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
    except Exception as error:  # of a damaged one torch raises whatever it stumbles over
        raise InvalidConfig(
            f"the checkpoint {str(path)!r} cannot be read: {pickle_fault(error)}; without it, the "
            "training begins anew"
        ) from None


@contextmanager
def owned(directory: Path) -> Iterator[None]:
    """Let no other training work in `directory` meanwhile: two would write over each other.

    Raises:
        InvalidConfig: one does already, or it is no directory that can be written.
    """
    lock = FileLock(directory / _LOCK_FILE, timeout=0)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise InvalidConfig(
            f"another training is running in {str(directory)!r}; expected it to end first, or "
            "another output"
        ) from None
    except OSError as error:
        raise InvalidConfig(
            f"the output {str(directory)!r} cannot be written: {error.strerror}"
        ) from None
    try:
        yield
    finally:
        lock.release()


def bind_directory(directory: Path, facts: Mapping[str, object]) -> None:
    """Note what decides the result in a new directory; compare it with an old one's note.

    Raises:
        InvalidConfig: the directory belongs to a training with another of these facts, or to one
            that is not known.
    """
    path = directory / MANIFEST_FILE
    wanted = json.loads(json.dumps(facts))
    if not path.exists():
        for name in (CHECKPOINT_FILE, HEAD_FOLDER):
            if (directory / name).exists():
                raise InvalidConfig(
                    f"{str(directory)!r} has a {name}, but no {MANIFEST_FILE} that says what it is "
                    "of; expected the output of a training, or a new one"
                )
        write_text_whole(path, json.dumps(wanted, indent=2) + "\n")
        return
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise InvalidConfig(f"{str(path)!r} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidConfig(f"{str(path)!r} holds no object; expected what a training wrote")
    for name, value in found.items():
        if value != wanted.get(name):
            raise InvalidConfig(
                f"{name} is {shown(wanted.get(name))}, but the training in {str(directory)!r} was "
                f"begun with {shown(value)}; expected the same, or another output"
            )
