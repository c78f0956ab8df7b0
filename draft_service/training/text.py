"""The text that a drafter learns from: token ids as the target itself wrote them, in an `.npz`.

Arrays: `ids` (whole numbers, all sequences one behind the other, chat template included), `lens`
(the length of each), `resp` (where in each the answer begins), `temp` (the temperature of each
answer; 0: greedy, NaN: not known). Other arrays are not looked at.

Invariant: what is read fits together and holds tokens of the target only, or is refused by the
array's name.
"""

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from draft_service.training.atomic_files import write_whole
from paceline.errors import InvalidConfig

IntArray = NDArray[np.int64]
_WHOLE = ("ids", "lens", "resp")


@dataclass(frozen=True, slots=True)
class TrainingText:
    """Sequences of tokens."""

    ids: IntArray
    """`[num_tokens]`"""
    starts: IntArray
    """`[num_sequences + 1]`, where each begins; the last is the end of all."""
    answer_starts: IntArray
    """`[num_sequences]`, where in its sequence each answer begins."""
    temperatures: NDArray[np.float32]
    """`[num_sequences]`; NaN where it is not known."""

    @property
    def num_sequences(self) -> int:
        """How many."""
        return len(self.answer_starts)


def read_text(path: Path, vocab_size: int) -> TrainingText:
    """The text in an `.npz`; `vocab_size`: rows of the target's embedding.

    Raises:
        InvalidConfig: it cannot be read, or an array of it makes no sense.
    """
    arrays = _read_arrays(path)
    ids, lengths, answer_starts = (arrays[name].astype(np.int64) for name in _WHOLE)
    temperatures = arrays["temp"].astype(np.float32)
    for name in ("resp", "temp"):
        if len(arrays[name]) != len(lengths):
            raise _refused(path, name, f"{len(arrays[name])} entries", f"{len(lengths)} as 'lens'")
    if len(lengths) == 0:
        raise _refused(path, "lens", "no sequences", "at least 2")
    if lengths.min() < 1 or lengths.sum() != len(ids):
        found = f"lengths from {lengths.min()} whose sum is {lengths.sum()}"
        raise _refused(path, "lens", found, f"lengths above 0 whose sum is {len(ids)} as in 'ids'")
    if ids.min() < 0 or ids.max() >= vocab_size:
        found = f"token ids from {ids.min()} to {ids.max()}"
        raise _refused(path, "ids", found, f"0 to {vocab_size - 1}, the model's tokens")
    if (answer_starts < 1).any() or (answer_starts > lengths).any():
        raise _refused(path, "resp", "places outside their sequences", "1 to the length of each")
    starts = np.concatenate(([0], np.cumsum(lengths)))
    return TrainingText(ids, starts, answer_starts, temperatures)


def write_text(path: Path, text: TrainingText) -> None:
    """Write the `.npz`, there whole or not at all; raises `InvalidConfig`."""

    def write(file: BinaryIO) -> None:
        np.savez_compressed(
            file,
            ids=text.ids.astype(np.int32),
            lens=np.diff(text.starts).astype(np.int32),
            resp=text.answer_starts.astype(np.int32),
            temp=text.temperatures,
        )

    write_whole(path, write)


def joined(texts: Sequence[TrainingText]) -> TrainingText:
    """The sequences of all, in order."""
    lengths = [np.diff(text.starts) for text in texts]
    return TrainingText(
        np.concatenate([text.ids for text in texts]),
        np.concatenate(([0], np.cumsum(np.concatenate(lengths)))),
        np.concatenate([text.answer_starts for text in texts]),
        np.concatenate([text.temperatures for text in texts]),
    )


def _read_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    try:
        with path.open("rb") as raw:
            if not zipfile.is_zipfile(raw):
                raise ValueError("it is another kind of file, or cut short")
            raw.seek(0)
            file = np.load(raw, allow_pickle=False)
            missing = [name for name in (*_WHOLE, "temp") if name not in file.files]
            if missing:
                raise _refused(path, missing[0], "missing", "the arrays ids, lens, resp and temp")
            arrays = {name: file[name] for name in (*_WHOLE, "temp")}
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidConfig(f"data {str(path)!r} cannot be read: {reason}") from None
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise InvalidConfig(f"data {str(path)!r} is no whole .npz file: {error}") from None
    for name, array in arrays.items():
        kinds = "f" if name == "temp" else "iu"
        if array.ndim != 1 or array.dtype.kind not in kinds:
            found = f"of type {array.dtype} and shape {list(array.shape)}"
            expected = f"one row of {'floats' if name == 'temp' else 'whole numbers'}"
            raise _refused(path, name, found, expected)
    return arrays


def _refused(path: Path, name: str, found: str, expected: str) -> InvalidConfig:
    return InvalidConfig(f"data {str(path)!r}: {name!r} is {found}; expected {expected}")
