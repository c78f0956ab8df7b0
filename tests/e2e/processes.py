"""The processes of the service, each started by itself and on ports of its own.

Unlike `paceline serve`, which a user starts, this starts any number of each with any settings, and
lets a test kill, stop, continue and start again every one of them. Leaving the context kills all.
"""

import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from plain_http import plain_get
from ports import HOST, number_of, reserve_port
from waiting import SOON_S

from paceline.cli.readiness import GrpcProbe
from paceline.cli.supervisor import Child, ChildSpec, Supervisor
from paceline.config import child_environment

START_TIMEOUT_S = 600.0
GRACE_S = 30.0


@dataclass(eq=False)
class Service:
    """One process of ours, running or not."""

    supervisor: Supervisor
    spec: ChildSpec
    child: Child
    is_ready: Callable[[], bool]
    metrics_address: str
    """`host:port` that serves `/metrics`."""

    @property
    def resident_bytes(self) -> int:
        """How much memory it holds (Linux)."""
        pages = Path(f"/proc/{self.child.process.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    def wait_ready(self) -> None:
        """Wait until it takes requests; raises `ChildFailed`, with its log, if that goes wrong."""
        self.supervisor.wait_ready({self.child: self.is_ready}, START_TIMEOUT_S, lambda *_: None)

    def kill(self) -> None:
        """End it with SIGKILL, as the system does when memory runs out."""
        self.child.process.kill()
        self.child.process.wait()
        # Meant to be dead: others may go on waiting.
        self.supervisor.find_dead()

    def stop(self) -> None:
        """End it with SIGTERM, in order."""
        self.supervisor.stop([self.child])

    def pause(self) -> None:
        """SIGSTOP: it is there, keeps its connections, and does nothing."""
        self.child.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.child.process.send_signal(signal.SIGCONT)

    def start_again(self) -> None:
        """The same at the same address, when the process before has ended."""
        self.child = self.supervisor.start(self.spec)


@dataclass(eq=False)
class Worker(Service):
    """A target or a draft."""

    role: str = ""
    address: str = ""


@dataclass(eq=False)
class Coordinator(Service):
    """A coordinator."""

    url: str = ""
    """Of the HTTP API, without `/v1`."""
    grpc_address: str = ""

    def read_status(self) -> dict[str, Any]:
        """The state of the service as it sees it."""
        found: dict[str, Any] = plain_get(f"{self.url}/status").json()
        return found


@dataclass(frozen=True)
class Stack:
    """A whole service."""

    target: Worker
    drafts: dict[str, Worker]
    """By the name of their drafter."""
    coordinator: Coordinator

    @property
    def workers(self) -> list[Worker]:
        """Target and drafts."""
        return [self.target, *self.drafts.values()]


class Processes:
    """Starts processes; a context manager that kills them all."""

    def __init__(self, log_directory: Path, num_threads: int) -> None:
        self.log_directory = log_directory
        self._supervisor = Supervisor(log_directory)
        self._num_threads = num_threads
        self._num_started = 0
        self._reserved: list[socket.socket] = []

    def target(self, **settings: Any) -> Worker:
        """Start a target, with settings by their names in `target_service.config`."""
        return self._worker("target", "paceline.v1.TargetService", settings)

    def draft(self, drafter: str, **settings: Any) -> Worker:
        """Start a draft, with settings by their names in `draft_service.config`."""
        settings = {"drafter": drafter, **settings}
        return self._worker("draft", "paceline.v1.DraftService", settings)

    def coordinator(
        self,
        targets: Sequence[Worker | str],
        drafts: Sequence[Worker | str],
        redis_url: str = "",
        **settings: Any,
    ) -> Coordinator:
        """Start a coordinator of these workers, which need not be ready, or sources of them."""
        http_port, grpc_port = self.port(), self.port()
        values = {
            "targets": tuple(_source(worker) for worker in targets),
            "drafts": tuple(_source(worker) for worker in drafts),
            "redis_url": redis_url,
            "http_port": http_port,
            "grpc_port": grpc_port,
            **settings,
        }
        spec = self._spec("coordinator", values)
        url = f"http://{HOST}:{http_port}"

        def is_ready() -> bool:
            try:
                return plain_get(f"{url}/ready").is_success
            except httpx.TransportError:
                return False

        child = self._supervisor.start(spec)
        http, grpc = f"{HOST}:{http_port}", f"{HOST}:{grpc_port}"
        return Coordinator(self._supervisor, spec, child, is_ready, http, url, grpc)

    def stack(
        self, target: Worker, drafts: dict[str, Worker], redis_url: str = "", **settings: Any
    ) -> Stack:
        """These workers and a coordinator for them, all ready to be used."""
        for worker in (target, *drafts.values()):
            worker.wait_ready()
        coordinator = self.coordinator([target], list(drafts.values()), redis_url, **settings)
        coordinator.wait_ready()
        # It is ready when its target is; a request that names a drafter needs that too.
        deadline = time.monotonic() + SOON_S
        while not all(worker["ready"] for worker in coordinator.read_status()["workers"]):
            assert time.monotonic() < deadline, coordinator.read_status()
            time.sleep(0.05)
        return Stack(target, drafts, coordinator)

    def _worker(self, role: str, service_name: str, settings: dict[str, Any]) -> Worker:
        port, metrics_port = self.port(), self.port()
        values = {
            "port": port,
            "metrics_port": metrics_port,
            "num_threads": self._num_threads,
            **settings,
        }
        spec = self._spec(f"{role}_service", values)
        address = f"{HOST}:{port}"
        probe = GrpcProbe(address, service_name)
        child = self._supervisor.start(spec)
        metrics = f"{HOST}:{metrics_port}"
        return Worker(self._supervisor, spec, child, probe, metrics, role, address)

    def port(self) -> int:
        """A port of our own to the end, also while none of our processes listens on it."""
        self._reserved.append(reserve_port())
        return number_of(self._reserved[-1])

    def _spec(self, module: str, values: dict[str, Any]) -> ChildSpec:
        self._num_started += 1
        threads = str(self._num_threads)
        environment = child_environment(
            {"host": HOST, **values}, {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        )
        argv = [sys.executable, "-P", "-m", module]
        return ChildSpec(f"{module}-{self._num_started}", argv, environment, GRACE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._supervisor.__exit__(kind, error, trace)
        for server in self._reserved:
            server.close()


def _source(worker: Worker | str) -> str:
    return worker if isinstance(worker, str) else worker.address
