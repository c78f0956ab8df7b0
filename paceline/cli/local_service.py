"""The whole service on this machine: which processes, with which settings, in which order.

Redis first, then targets and drafts, and the coordinator when these are ready, so that nothing
listens on a public port before a request would work. Stopped the other way round. Everything is
bound to 127.0.0.1. A draft or Redis may be lost while the service goes on; without the
coordinator or the last target there is none.
"""

import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from paceline.cli.api import CoordinatorApi
from paceline.cli.config import ServeSettings
from paceline.cli.embedded_redis import START_TIMEOUT_S as REDIS_START_TIMEOUT_S
from paceline.cli.embedded_redis import NoRedis, find_redis
from paceline.cli.free_ports import HOST, reserve_port
from paceline.cli.readiness import GrpcProbe, HttpProbe, unused_parts
from paceline.cli.supervisor import Child, ChildFailed, ChildSpec, Supervisor
from paceline.cli.worker_settings import draft_values, rank_variables, target_values
from paceline.config import child_environment
from paceline.server import DEVICE_BROKEN

START_TIMEOUT_S = 1800.0
"""Ample for the download of a large model; a process that fails is noticed at once."""
DRAIN_S = 10.0
"""How long running answers may take to end after Ctrl-C."""
GRACE_S = 30.0
"""How much longer than that a process may take to end: nothing waits for it, except on a machine
that has no time for it."""
SETTLE_TIMEOUT_S = 2.0
"""How long the coordinator may take to find out what the drafts are, and whether Redis answers."""
IN_MEMORY = "Sessions are kept in the coordinator's memory"


class LocalService:
    """The processes of one `paceline serve`."""

    def __init__(
        self, settings: ServeSettings, supervisor: Supervisor, directory: Path, console: Console
    ) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._directory = directory
        self._console = console
        self._targets: list[list[Child]] = []
        """Each as its ranks, of which the first one answers; mostly there is no other."""
        self._drafts: list[Child] = []
        self._coordinators: list[Child] = []
        self._redis: list[Child] = []
        self.has_lost_child = False
        self.last_words = ""
        """Said when stopping begins: from then on, and no sooner, a signal ends it at once."""
        self.url = ""
        """Where the OpenAI-compatible API is, without `/v1`."""
        self.grpc_address = ""
        self.metrics_urls: list[str] = []
        """Of the coordinator, the targets and the drafts."""
        self._metrics_ports: dict[str, int] = {}

    def start(self) -> None:
        """Start everything; raises `InvalidConfig` or `ChildFailed` when that does not work."""
        settings = self._settings
        for sentence in settings.contradictions():
            self._say(f"Warning: {sentence}")
        num_drafts = settings.draft_replicas if settings.drafts else 0
        # Held until the processes listen there: ranks and others take any port that is free.
        with ExitStack() as reserved:
            http_port = reserve_port(reserved, "--http-port", settings.http_port)
            grpc_port = reserve_port(reserved, "--grpc-port", settings.grpc_port)
            num_workers = settings.target_replicas + num_drafts
            ports = [reserve_port(reserved, "port", 0) for _ in range(2 * num_workers)]
            addresses = [f"{HOST}:{port}" for port in ports[:num_workers]]
            self._metrics_ports = dict(zip(addresses, ports[num_workers:], strict=True))
            pages = (http_port, *self._metrics_ports.values())
            self.metrics_urls = [f"http://{HOST}:{port}/metrics" for port in pages]
            targets = addresses[: settings.target_replicas]
            drafts = addresses[settings.target_replicas :]
            redis_url = self._find_redis()
            self._start_workers(targets, drafts)

            self.url = f"http://{HOST}:{http_port}"
            self.grpc_address = f"{HOST}:{grpc_port}"
            coordinator = self._start_coordinator(http_port, grpc_port, targets, drafts, redis_url)
            with self._console.status("Starting the coordinator"):
                probe = HttpProbe(self.url)
                self._supervisor.wait_ready({coordinator: probe}, START_TIMEOUT_S, self._say_ready)
        self._warn_of_what_is_not_used()

    def _start_workers(self, targets: list[str], drafts: list[str]) -> None:
        """Start those at these addresses, and wait until they are ready."""
        probes: dict[Child, GrpcProbe] = {}
        # Until they have met, nobody else should be given the ports where ranks do.
        with ExitStack() as reserved:
            for number, address in enumerate(targets, 1):
                port = reserve_port(reserved, "port", 0)
                ranks = self._start_target(f"target-{number}", address, port)
                self._targets.append(ranks)
                probes[ranks[0]] = GrpcProbe(address, "paceline.v1.TargetService")
            for number, address in enumerate(drafts, 1):
                values = draft_values(self._settings) | self._ports(address)
                child = self._start("draft_service", f"draft-{number}", values, GRACE_S)
                self._drafts.append(child)
                probes[child] = GrpcProbe(address, "paceline.v1.DraftService")
            num_ranks = self._settings.tensor_parallel_size
            names = ", ".join(child.spec.name for child in probes)
            each = f"; {num_ranks} ranks for each target" if num_ranks > 1 else ""
            self._say(f"Starting {names}{each}; their logs are in {self._directory}")
            with self._console.status("Loading the model"):
                self._supervisor.wait_ready(probes, START_TIMEOUT_S, self._say_ready)
        for grpc_probe in probes.values():
            grpc_probe.close()

    def _warn_of_what_is_not_used(self) -> None:
        """A draft may run well and not fit the target, which only the coordinator sees."""
        with CoordinatorApi(self.url) as api:
            unused = unused_parts(api, SETTLE_TIMEOUT_S)
        for address, reason in unused.drafts:
            self._say(f"Warning: the draft at {address} is not used yet: {reason}")
        if unused.is_redis_away:
            self._say(f"Warning: --redis-url cannot be reached. {IN_MEMORY} until it can")

    def check(self) -> None:
        """Say which children were lost since; raises `ChildFailed` if no request works any more."""
        # Whoever ended because another one did says less than that one.
        for child in sorted(self._supervisor.find_dead(), key=_has_given_up):
            self.has_lost_child = True
            if child in self._drafts:
                self._drafts.remove(child)
                rest = f"{len(self._drafts)} drafts are left" if self._drafts else "without drafts"
                self._say(f"{child.describe_end()}\nThe service goes on, {rest}.")
            elif child in self._redis:
                self._say(f"{child.describe_end()}\n{IN_MEMORY}; the service goes on.")
            elif child in self._coordinators:
                raise ChildFailed(child.describe_end())
            for ranks in [ranks for ranks in self._targets if child in ranks]:
                self._lose(ranks, child.describe_end())

    def _lose(self, ranks: list[Child], message: str) -> None:
        """A target is lost with any of its ranks; with the last target all is."""
        if len(ranks) > 1:
            message += f"\nWith this rank {ranks[0].spec.name} is lost, which had {len(ranks)}."
        self._supervisor.kill(ranks)
        self._targets.remove(ranks)
        if not self._targets:
            raise ChildFailed(message)
        self._say(f"{message}\n{len(self._targets)} targets are left.")

    def stop(self) -> None:
        """Stop everything in order; running answers may end first."""
        if self.last_words:
            self._say(self.last_words)
        ranks = [rank for ranks in self._targets for rank in ranks]
        for group in (self._coordinators, self._drafts + ranks, self._redis):
            for child in self._supervisor.stop(group):
                self._say(f"{child.spec.name} did not stop in time and was killed")

    def _find_redis(self) -> str:
        """Where the coordinator is to keep sessions: an address, or nothing for its memory."""
        if self._settings.redis_url == "none":
            return ""
        if self._settings.redis_url:
            return self._settings.redis_url
        server = find_redis(self._directory)
        if isinstance(server, NoRedis):
            self._say(f"{IN_MEMORY}: {server.reason}")
            return ""
        spec = ChildSpec("redis", server.argv, child_environment({}, {}), GRACE_S)
        child = self._supervisor.start(spec)
        try:
            self._supervisor.wait_ready(
                {child: server.answers}, REDIS_START_TIMEOUT_S, self._say_ready
            )
        except ChildFailed as failure:
            self._say(f"{IN_MEMORY}: {failure.message}")
            self._supervisor.stop([child])
            return ""
        self._redis.append(child)
        return server.url

    def _start_target(self, name: str, address: str, meeting_port: int) -> list[Child]:
        """The ranks of one target."""
        num_ranks = self._settings.tensor_parallel_size
        values = target_values(self._settings) | self._ports(address)
        return [
            self._start(
                "target_service",
                f"{name}.rank-{rank}" if rank else name,
                values,
                GRACE_S,
                rank_variables(rank, num_ranks, HOST, meeting_port),
            )
            for rank in range(num_ranks)
        ]

    def _ports(self, address: str) -> dict[str, int]:
        """Of a worker; of ranks, the first one has them."""
        port = int(address.rpartition(":")[2])
        return {"port": port, "metrics_port": self._metrics_ports[address]}

    def _start_coordinator(
        self, http_port: int, grpc_port: int, targets: list[str], drafts: list[str], redis_url: str
    ) -> Child:
        values = {
            "targets": tuple(targets),
            "drafts": tuple(drafts),
            "redis_url": redis_url,
            "num_speculative_tokens": self._settings.num_speculative_tokens,
            "acceptance_rule": self._settings.acceptance_rule,
            "drain_seconds": DRAIN_S,
            "http_port": http_port,
            "grpc_port": grpc_port,
        }
        child = self._start("coordinator", "coordinator", values, DRAIN_S + GRACE_S)
        self._coordinators.append(child)
        return child

    def _start(
        self,
        module: str,
        name: str,
        values: Mapping[str, Any],
        grace_s: float,
        variables: Mapping[str, str] | None = None,
    ) -> Child:
        num_threads = str(values.get("num_threads", 1))
        environment = child_environment(
            {"host": HOST, "log_level": self._settings.log_level, "log_format": "text", **values},
            {"OMP_NUM_THREADS": num_threads, "MKL_NUM_THREADS": num_threads, **(variables or {})},
        )
        # -P: a folder named `coordinator` where the user happens to be must not be run instead.
        argv = [sys.executable, "-P", "-m", module]
        return self._supervisor.start(ChildSpec(name, argv, environment, grace_s))

    def _say_ready(self, child: Child, seconds: float) -> None:
        self._say(f"{child.spec.name} is ready ({seconds:.1f} s)")

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)


@contextmanager
def local_service(settings: ServeSettings, console: Console) -> Iterator[LocalService]:
    """Run the whole service while the context lasts; progress goes to the console.

    SIGTERM and SIGHUP become `SystemExit`, as SIGINT becomes `KeyboardInterrupt`: the first of
    them leaves the context, which stops everything in order; a second one ends that at once.
    """
    directory = Path(tempfile.mkdtemp(prefix="paceline-"))
    keep = False
    try:
        with _signals_raise(), Supervisor(directory) as supervisor:
            service = LocalService(settings, supervisor, directory, console)
            try:
                service.start()
                yield service
            except ChildFailed:
                keep = True
                raise
            finally:
                keep = keep or service.has_lost_child
                service.stop()
    finally:
        if keep:
            console.print(f"The logs are kept in {directory}", soft_wrap=True, highlight=False)
        else:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _signals_raise() -> Iterator[None]:
    before = {
        number: signal.signal(number, _exit_on_signal) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _has_given_up(child: Child) -> bool:
    return child.process.returncode == DEVICE_BROKEN
