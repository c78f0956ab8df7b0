"""The target's hidden states for a text, on disk: what training reads instead of the target.

A directory with `feat.npy` (float16 `[num_tokens, width]`: the inputs of the feature layers, then
the last state behind the last norm), `ids.npy` (int32 `[num_tokens]`), `starts.npy` (where each
sequence begins, and the end) and `order.npy` (which sequence of the text each is: a seeded random
order, so that reading from the front is reading at random). `captured.json` counts the sequences
that are there while the others are still to come, and says whose they are; without it all are.

Invariant: whoever opens a directory knows that it belongs to this text and this target's shape.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from draft_service.training.atomic_files import write_text_whole, write_whole
from draft_service.training.text import IntArray, TrainingText
from paceline.errors import InvalidConfig

STATES = "feat.npy"
PROGRESS = "captured.json"
_LOCK_FILE = ".features.lock"


@dataclass(frozen=True, slots=True)
class FeatureFiles:
    """Features of a text, sequence by sequence in their random order."""

    directory: Path
    states: NDArray[np.float16]
    """`[num_tokens, width]`, mapped: read as it is needed."""
    ids: NDArray[np.int32]
    starts: IntArray
    order: IntArray
    """The sequence of the text that each is."""
    hidden_size: int
    """Width of the last state."""
    target: str
    """Digest of the target that they come from."""
    layer_ids: tuple[int, ...]
    """Of the target, whose inputs are kept in front of its last state."""

    @property
    def num_sequences(self) -> int:
        """How many there are, captured or not."""
        return len(self.order)

    @property
    def num_captured(self) -> int:
        """Sequences from the front whose features are there."""
        progress = _read_progress(self.directory)
        return self.num_sequences if progress is None else int(progress["num_sequences"])

    def front(self, num_tokens: int) -> "FeatureFiles":
        """The first sequences, in their random order, that have so many tokens together.

        Two at least, and all where there are not so many.
        """
        num = min(max(2, int(np.searchsorted(self.starts, num_tokens))), self.num_sequences)
        starts = self.starts[: num + 1]
        return replace(self, ids=self.ids[: starts[-1]], starts=starts, order=self.order[:num])

    def record(self, num_captured: int) -> None:
        """Say that the features of so many sequences are on disk."""
        if isinstance(self.states, np.memmap):
            self.states.flush()
        _write_progress(self.directory, num_captured, self.target, self.layer_ids)


@contextmanager
def filled_alone(directory: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Make room in `directory` and fill it while no other training does; waits for one that does.

    Two that made room at once would each empty what the other has filled. Raises `InvalidConfig`.
    """
    lock = FileLock(directory / _LOCK_FILE)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"Waiting for another training, which fills {str(directory)!r}")
            lock.acquire()
    except OSError as error:
        raise InvalidConfig(
            f"features {str(directory)!r} cannot be written: {error.strerror}"
        ) from None
    try:
        yield
    finally:
        lock.release()


def open_features(
    directory: Path,
    text: TrainingText,
    hidden_size: int,
    layer_ids: tuple[int, ...],
    target: str,
    seed: int | None,
) -> FeatureFiles:
    """The features in `directory`, where room for them is made if there are none.

    The inputs of the layers `layer_ids` are kept beside the last state. `target`: its digest.
    `seed` of the order in which room is made; None: the text's own.

    Raises:
        InvalidConfig: they belong to another text, target or layers, or there is no room.
    """
    width = (len(layer_ids) + 1) * hidden_size
    if not (directory / "order.npy").exists():
        _make_room(directory, len(text.ids), width)
        _write_progress(directory, 0, target, layer_ids)
        _arrange(directory, text, seed)
    try:
        np.load(directory / STATES, mmap_mode="r")  # what is cut short, "r+" fills with zeros
        states = np.load(directory / STATES, mmap_mode="r+")
        ids, starts, order = (np.load(directory / f"{name}.npy") for name in _SMALL)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidConfig(f"features {str(directory)!r} cannot be read: {error}") from None
    expected = _arranged(text, order)
    for name, found, wanted in zip(_SMALL, (ids, starts, order), expected, strict=True):
        if found.shape != wanted.shape or (found != wanted).any():
            raise InvalidConfig(
                f"features {str(directory)!r}: {name}.npy is not that of the text in the data; "
                "expected features of the same text (or another directory)"
            )
    shape = (len(text.ids), width)
    if states.shape != shape or states.dtype != np.float16:
        raise InvalidConfig(
            f"features {str(directory)!r}: {STATES} has the shape {list(states.shape)} and type "
            f"{states.dtype}; expected {list(shape)} and float16 by the model"
        )
    _check_progress(directory, target, layer_ids, is_finished=bool(states[-1].any()))
    starts, order = starts.astype(np.int64), order.astype(np.int64)
    return FeatureFiles(directory, states, ids, starts, order, hidden_size, target, layer_ids)


_SMALL = ("ids", "starts", "order")


def _make_room(directory: Path, num_tokens: int, width: int) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / STATES
        np.lib.format.open_memmap(path, "w+", np.dtype(np.float16), (num_tokens, width))
        _reserve(path)
    except OSError as error:
        raise InvalidConfig(
            f"features {str(directory)!r} cannot be written: {error.strerror}"
        ) from None


def _arrange(directory: Path, text: TrainingText, seed: int | None) -> None:
    order = np.arange(text.num_sequences)
    if seed is not None:
        order = np.random.default_rng(seed).permutation(text.num_sequences)
    for name, array in zip(_SMALL, _arranged(text, order), strict=True):
        write_whole(directory / f"{name}.npy", partial(np.save, arr=array))


def _reserve(path: Path) -> None:
    """Take the room on disk now: running out of it in mapped memory ends a process at once."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _write_progress(
    directory: Path, num_sequences: int, target: str, layer_ids: tuple[int, ...]
) -> None:
    table = {"num_sequences": num_sequences, "target": target, "layers": layer_ids}
    write_text_whole(directory / PROGRESS, json.dumps(table))


def _read_progress(directory: Path) -> dict[str, Any] | None:
    """How many sequences there are, and of which target and layers; None where it is not said."""
    path = directory / PROGRESS
    if not path.exists():
        return None
    try:
        table = json.loads(path.read_text())
        layers = table.get("layers")
        return {
            "num_sequences": int(table["num_sequences"]),
            "target": str(table["target"]),
            "layers": None if layers is None else [*layers],  # not said by older ones
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidConfig(
            f"features {str(directory)!r}: {PROGRESS} does not say how many sequences there are "
            f"of which target ({error})"
        ) from None


def _check_progress(
    directory: Path, target: str, layer_ids: tuple[int, ...], is_finished: bool
) -> None:
    progress = _read_progress(directory)
    if progress is not None:
        if progress["target"] != target:
            raise InvalidConfig(
                f"features {str(directory)!r}: are of a target with the digest "
                f"{progress['target']}; expected {target}, the model's (or another directory)"
            )
        if progress["layers"] not in (None, [*layer_ids]):
            raise InvalidConfig(
                f"features {str(directory)!r}: are of the layers {progress['layers']}; expected "
                f"{[*layer_ids]} (or another directory)"
            )
    elif not is_finished:
        raise InvalidConfig(
            f"features {str(directory)!r}: the last rows of {STATES} are empty and there is no "
            f"{PROGRESS} to say how many are there; expected a finished capture"
        )


def _arranged(text: TrainingText, order: NDArray[np.integer]) -> tuple[NDArray[np.integer], ...]:
    """Ids, starts and order of the text in this order, or in its own if that is none."""
    wanted = np.sort(order)
    if not np.array_equal(wanted, np.arange(text.num_sequences)):
        order = np.arange(text.num_sequences)
    lengths = np.diff(text.starts)[order]
    pieces = [text.ids[text.starts[index] : text.starts[index + 1]] for index in order]
    ids = np.concatenate(pieces).astype(np.int32)
    return ids, np.concatenate(([0], np.cumsum(lengths))), order.astype(np.int64)
