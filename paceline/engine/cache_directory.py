"""A directory that takes long to make and is kept for the next time.

Invariant: it is there whole or not at all, however many processes want it at once and wherever one
of them is interrupted.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from paceline.errors import InvalidConfig


def made_once(directory: Path, write: Callable[[Path], None]) -> Path:
    """`directory`, filled by `write` unless it is there; others that want it wait meanwhile.

    Raises:
        InvalidConfig: it cannot be written.
    """
    if directory.is_dir():
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(directory.with_name(f"{directory.name}.lock")):
            if not directory.is_dir():
                _write_whole(directory, write)
    except OSError as error:
        raise InvalidConfig(f"directory {str(directory)!r} cannot be written: {error}") from error
    return directory


def _write_whole(directory: Path, write: Callable[[Path], None]) -> None:
    unfinished = directory.with_name(f"{directory.name}.unfinished")
    # The lock is ours: what an interrupted process left behind is nobody's.
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    write(unfinished)
    # Weights are written for their owner alone; an image is built by one user and run by another.
    for path in unfinished.glob("*.safetensors"):
        path.chmod(0o644)
    unfinished.rename(directory)
