"""Ranks of targets as real processes, forked from one that has imported torch already.

What differs from `python -m target_service` is that each is there in a moment. Leaving the context
kills all.
"""

import asyncio
import multiprocessing
import os
import socket
import sys
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

from ports import HOST, number_of, reserve_port
from waiting import SOON_S

from paceline.cli.readiness import GrpcProbe
from paceline.cli.worker_settings import rank_variables
from paceline.config import child_environment

SERVICE = "paceline.v1.TargetService"
PRELOADED = ["paceline.engine.ranks.build", "target_service.__main__"]


@dataclass(eq=False)
class Rank:
    """One process."""

    process: BaseProcess
    log_path: Path

    @property
    def log(self) -> str:
        """What it said."""
        return self.log_path.read_text()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    async def end(self) -> int:
        """The status with which it ends by itself, negative for a signal."""
        deadline = time.monotonic() + SOON_S
        while (code := self.process.exitcode) is None:
            assert time.monotonic() < deadline, f"it goes on: {self.log}"
            await asyncio.sleep(0.05)
        return code


@dataclass
class Group:
    """The ranks of one target."""

    ranks: list[Rank]
    address: str

    async def wait_ready(self) -> None:
        """Wait until it takes requests."""
        await until_serving(self.address, SERVICE, self.ranks)


class RankProcesses:
    """Starts ranks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self._started: list[Rank] = []
        self._reserved: list[socket.socket] = []

    def port(self) -> int:
        """A port that nobody else is given."""
        self._reserved.append(reserve_port())
        return number_of(self._reserved[-1])

    def group(self, size: int, **settings: Any) -> Group:
        """All ranks of a target, with settings by their names in `target_service.config`."""
        port, meeting_port = self.port(), self.port()
        ranks = [
            self.rank(rank_variables(rank, size, HOST, meeting_port), size, port=port, **settings)
            for rank in range(size)
        ]
        return Group(ranks, f"{HOST}:{port}")

    def rank(self, variables: dict[str, str], size: int, **settings: Any) -> Rank:
        """One process that is told its place by these variables."""
        values = {"host": HOST, "num_threads": 1, "kv_cache_tokens": 4096, **settings}
        values["tensor_parallel_size"] = size
        log_path = self._folder / f"rank-{len(self._started)}.log"
        process = self._context.Process(
            target=_run, args=(child_environment(values, variables), str(log_path))
        )
        log_path.touch()
        process.start()
        self._started.append(Rank(process, log_path))
        return self._started[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self._started:
            rank.process.kill()
            rank.process.join()
        for reserved in self._reserved:
            reserved.close()


async def until_serving(address: str, service: str, ranks: list[Rank]) -> None:
    """Wait until a server says that a service of it takes requests, while these ranks run."""
    probe = GrpcProbe(address, service)
    deadline = time.monotonic() + 5 * SOON_S
    while not await asyncio.to_thread(probe):
        logs = "\n".join(rank.log for rank in ranks)
        assert all(rank.process.exitcode is None for rank in ranks), logs
        assert time.monotonic() < deadline, f"not ready: {logs}"
        await asyncio.sleep(0.05)
    probe.close()


def _run(environment: dict[str, str], log_path: str) -> None:
    """In the new process, what `python -m target_service` does."""
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["target_service"]
    from paceline.server import run_service
    from target_service.__main__ import serve
    from target_service.config import TargetSettings

    run_service("target_service", TargetSettings, serve)
