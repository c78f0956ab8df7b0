"""Starts child processes, waits until each is ready, notices when one dies, and stops them all.

Knows nothing about what the children do: a readiness probe and the order of stopping are given.
Single-threaded; whoever calls decides how often to look (`find_dead`).

Invariant: no child outlives this process, however it ends. All children are in one process group
with a guard, a shell that waits for the end of a pipe which only this process holds open; the
kernel closes it at the latest when this process is killed, and the guard kills the group.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from paceline.errors import PacelineError

POLL_S = 0.05
SHOWN_LOG_LINES = 15

_GUARD = "trap '' HUP INT TERM; read _; kill -9 0"

_SIGNAL_MEANINGS = {
    signal.SIGKILL: "something killed it; often the system, when memory runs out",
    signal.SIGSEGV: "it crashed in native code",
    signal.SIGBUS: "it crashed in native code, or a file it had mapped shrank",
    signal.SIGILL: "it used an instruction that this CPU does not have",
    signal.SIGABRT: "native code gave up",
    signal.SIGTERM: "something else than Paceline told it to stop",
}


class ChildFailed(PacelineError):
    """A child process ended or never became ready; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A process to start."""

    name: str
    """What messages call it, and the name of its log file."""
    argv: Sequence[str]
    environment: Mapping[str, str]
    grace_s: float
    """How long it may take to stop by itself after SIGTERM."""


class Child:
    """A process that was started."""

    def __init__(self, spec: ChildSpec, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self.spec = spec
        self.process = process
        self.log_path = log_path

    @property
    def has_ended(self) -> bool:
        """Whether it is gone."""
        return self.process.poll() is not None

    def describe_end(self) -> str:
        """Why it is gone, with the last lines of its log."""
        code = self.process.poll()
        if code is None:
            raise ValueError(f"{self.spec.name} is still running")
        if code >= 0:
            reason = f"exit code {code}"
        else:
            number = signal.Signals(-code)
            meaning = _SIGNAL_MEANINGS.get(number)
            reason = f"signal {number.name}" + (f": {meaning}" if meaning else "")
        return f"{self.spec.name} ended ({reason})" + self.describe_log()

    def describe_log(self) -> str:
        """The last lines of its log and where to find it, to be put behind a sentence."""
        lines = self.log_path.read_text(errors="replace").splitlines()[-SHOWN_LOG_LINES:]
        if not lines:
            return f"; its log {self.log_path} is empty"
        return f"; the end of {self.log_path}:\n" + "\n".join(f"    {line}" for line in lines)


class Supervisor:
    """The children of this process. A context manager: leaving it kills whatever still runs."""

    def __init__(self, log_directory: Path) -> None:
        self._log_directory = log_directory
        self._children: list[Child] = []
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD], stdin=subprocess.PIPE, process_group=0
        )

    def start(self, spec: ChildSpec) -> Child:
        """Start a process; what it prints goes to its log file."""
        log_path = self._log_directory / f"{spec.name}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                spec.argv,
                env=dict(spec.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=self._guard.pid,
            )
        child = Child(spec, process, log_path)
        self._children.append(child)
        return child

    def wait_ready(
        self,
        probes: Mapping[Child, Callable[[], bool]],
        timeout_s: float,
        on_ready: Callable[[Child, float], None],
    ) -> None:
        """Wait until every probe holds; `on_ready` hears of each, with the seconds it took.

        Raises `ChildFailed` as soon as any child of this supervisor dies, or after `timeout_s`.
        """
        started = time.monotonic()
        waiting = dict(probes)
        while waiting:
            for child, is_ready in list(waiting.items()):
                if is_ready():
                    del waiting[child]
                    on_ready(child, time.monotonic() - started)
            for child in self.find_dead():
                raise ChildFailed(child.describe_end())
            if waiting and time.monotonic() - started > timeout_s:
                slow = next(iter(waiting))
                raise ChildFailed(
                    f"{slow.spec.name} was not ready within {timeout_s:g} s" + slow.describe_log()
                )
            time.sleep(POLL_S)

    def find_dead(self) -> list[Child]:
        """Children that ended since the last call, each named once."""
        dead = [child for child in self._children if child.has_ended]
        self._children = [child for child in self._children if child not in dead]
        return dead

    def stop(self, children: Sequence[Child]) -> list[Child]:
        """Tell these to stop, all at once; returns those that had to be killed in the end."""
        for child in children:
            child.process.terminate()
        deadlines = {child: time.monotonic() + child.spec.grace_s for child in children}
        killed = []
        for child, deadline in deadlines.items():
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
                killed.append(child)
        self._children = [child for child in self._children if child not in children]
        return killed

    def kill(self, children: Sequence[Child]) -> None:
        """End these at once."""
        for child in children:
            child.process.kill()
            child.process.wait()
        self._children = [child for child in self._children if child not in children]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Not by way of the guard alone: it could have been killed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._guard.pid, signal.SIGKILL)
        self._guard.communicate()
        for child in self._children:
            child.process.wait()
