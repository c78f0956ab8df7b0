"""`paceline serve` (or another command) as a process, as a user would start it in a pipe."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from waiting import SOON_S


class ServeProcess:
    """A running `paceline serve` on free ports. Leaving the context kills it."""

    def __init__(
        self,
        *options: str,
        run_folder: Path,
        environment: dict[str, str] | None = None,
        command: str = "serve",
    ) -> None:
        inherited = {key: text for key, text in os.environ.items() if "PACELINE" not in key}
        ours = {
            "TMPDIR": str(run_folder),
            "PACELINE_HTTP_PORT": "0",
            "PACELINE_GRPC_PORT": "0",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "paceline.cli.main", command, *options],
            env=inherited | ours | (environment or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.url = ""
        """Of the HTTP API, without `/v1`; known once it is ready."""
        self.grpc_address = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def wait_ready(self) -> None:
        """Wait until it has printed its addresses."""
        assert self.process.stdout is not None
        printed = ""
        for line in self.process.stdout:
            printed += line
            if line == "Ctrl-C stops it.\n":
                break
        else:
            pytest.fail(f"it ended: {self.end()}")
        http = re.search(r"HTTP .* (http://\S+)/v1\n", printed)
        grpc = re.search(r"gRPC +(\S+) ", printed)
        assert http is not None, printed
        assert grpc is not None, printed
        self.url, self.grpc_address = http[1], grpc[1]

    def read_message(self, part: str) -> str:
        """The next line of its messages that has this part."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if part in line:
                return line
        pytest.fail(f"it never said {part!r}")

    def pids(self, module: str) -> list[int]:
        """The processes that run one of the services, in the order they were started (Linux)."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                command = (folder / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(parent) == self.process.pid and module.encode() in command:
                found.append(int(folder.name))
        return sorted(found)

    def end(self) -> tuple[int, str]:
        """Wait for the end; returns the status, and what it said since the last message read."""
        _, errors = self.process.communicate(timeout=SOON_S)
        return self.process.returncode, errors
