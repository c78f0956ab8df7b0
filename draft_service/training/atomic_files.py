"""Files that are there whole or not at all, wherever the process is killed."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from paceline.errors import InvalidConfig


def write_whole(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Let `write` fill a file beside `path`, then put it in the place of `path`.

    Raises:
        InvalidConfig: it cannot be written, such as when the disk is full.
    """
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise InvalidConfig(f"{str(path)!r} cannot be written: {error.strerror}") from None


def write_text_whole(path: Path, text: str) -> None:
    """As `write_whole`, of a text."""

    def write(file: BinaryIO) -> None:
        file.write(text.encode())

    write_whole(path, write)
