"""What a training says while it runs: lines for people, and `progress.jsonl` for plots.

Knows nothing about what is trained. A training that goes on from a checkpoint drops what was
written behind it, so that the file reads as if nothing had happened.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from draft_service.training.atomic_files import write_text_whole
from paceline.errors import InvalidConfig

PROGRESS_FILE = "progress.jsonl"


class Progress:
    """The progress of one output directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / PROGRESS_FILE
        self._console = Console(file=sys.stderr, highlight=False)

    def say(self, text: str) -> None:
        """A line for people."""
        self._console.print(text, soft_wrap=True, markup=False)

    def resume(self, num_steps: int) -> None:
        """Forget what was recorded behind step `num_steps`; raises `InvalidConfig` for a gap."""
        kept = [entry for entry in self.entries() if entry["step"] <= num_steps]
        if [entry["step"] for entry in kept] != list(range(1, num_steps + 1)):
            raise InvalidConfig(
                f"{str(self._path)!r} lacks some of the {num_steps} steps that the checkpoint has; "
                "without either, the training begins anew"
            )
        write_text_whole(self._path, "".join(json.dumps(entry) + "\n" for entry in kept))

    def record(self, entry: dict[str, Any]) -> None:
        """Append an entry; it has a `step`."""
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())  # before the checkpoint, which counts on it
        except OSError as error:
            raise InvalidConfig(
                f"{str(self._path)!r} cannot be written: {error.strerror}"
            ) from None

    def entries(self) -> list[dict[str, Any]]:
        """All that is recorded; a line that was cut short is none, nor is what follows it."""
        if not self._path.exists():
            return []
        found: list[dict[str, Any]] = []
        for line in self._path.read_text(errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                break
            if not isinstance(entry, dict) or type(entry.get("step")) is not int:
                break
            found.append(entry)
        return found
