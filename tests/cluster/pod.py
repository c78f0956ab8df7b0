"""The life of one pod on a node: made, started, probed, told to stop, ended.

Follows the kubelet: liveness and readiness wait for the startup probe; a container that ends or is
found dead is started again; who stops gets `preStop`, SIGTERM, and within
`terminationGracePeriodSeconds` of the beginning SIGKILL. Whatever happened is in `events`.
"""

import asyncio
import contextlib
import itertools
import signal
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.container import Container
from tests.cluster.network import Sandbox
from tests.cluster.objects import NotThere, Object
from tests.cluster.probes import Probe, probes_of, run_inside
from tests.cluster.starting import Node, Starting

BACKOFF_S = 10.0
"""Before the second restart; doubled each time."""
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Event:
    """Something that happened to a pod."""

    at: float
    what: str


@dataclass(eq=False)
class Pod:
    """One pod, from its creation to its end."""

    node: Node
    name: str
    spec: Object
    """As in the template: `metadata` and `spec`."""
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    sandbox: Sandbox | None = None
    is_started: bool = False
    is_ready: bool = False
    is_terminating: bool = False
    is_over: bool = False
    num_restarts: int = 0
    exit_codes: dict[str, int] = field(default_factory=dict)
    """Of containers that have ended for good."""
    memory_bytes: dict[str, int] = field(default_factory=dict)
    """The most that was seen of each container."""
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.number = next(_numbers)
        self.folder = self.node.folder / f"{self.name}-{self.number}"
        self._starting: Starting | None = None
        self._stop = asyncio.Event()
        self._running: dict[str, Container] = {}

    @property
    def address(self) -> str:
        """Empty before it has one."""
        return self.sandbox.address if self.sandbox else ""

    @property
    def labels(self) -> dict[str, str]:
        return self.spec["metadata"].get("labels", {})

    @property
    def log(self) -> str:
        """What its containers said."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    def container(self, name: str = "") -> Container:
        """One that runs; the first if not named."""
        return self._running[name or next(iter(self._running))]

    def delete(self) -> None:
        """Let it end."""
        if not self.is_terminating:
            self.is_terminating = True
            self._tell("terminating")
            self._stop.set()

    def refresh_volumes(self) -> None:
        """Show changed Secrets and ConfigMaps."""
        if self._starting is not None:
            self._starting.volumes.refresh()

    def write_hosts(self, text: str) -> None:
        """What names mean in it; the same file, since it is mounted."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "hosts").write_text(
            f"127.0.0.1 localhost\n{self.address} {self.name}\n{text}"
        )

    async def live(self) -> None:
        """All of it. Cancelled, nothing is left running either."""
        try:
            self.sandbox = self.node.network.sandbox(self.name[:63])
            self._starting = Starting(
                self.node, self.name, self.uid, self.spec, self.sandbox, self.folder
            )
            self._tell("scheduled")
            if await self._prepared():
                await self._run()
        finally:
            for running in self._running.values():
                running.signal(signal.SIGKILL)
                running.process.wait()
            if self.sandbox:
                self.sandbox.close()
            self.is_ready, self.is_over = False, True
            self._tell("over")

    async def _prepared(self) -> bool:
        """Volumes are there and the init containers have run; False: stopped before."""
        while not self._stop.is_set():
            try:
                assert self._starting is not None
                self._starting.prepare()
                for spec in self.spec["spec"].get("initContainers", []):
                    assert spec.get("restartPolicy") != "Always", "sidecars are not known here"
                    started = await self._start(spec)
                    await asyncio.to_thread(started.process.wait)
                    assert started.exit_code == 0, f"{self.name}: {spec['name']}: {self.log}"
                    del self._running[spec["name"]]
                return True
            except NotThere as missing:
                self._tell(f"waits for {missing}")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), 0.2)
        return False

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for spec in self.spec["spec"]["containers"]:
                group.create_task(self._keep(spec))

    async def _keep(self, spec: Object) -> None:
        """Run a container for as long as the pod lives, again when it ends or is found dead."""
        restarts = self.spec["spec"].get("restartPolicy", "Always") == "Always"
        for attempt in itertools.count():
            try:
                running = await self._start(spec)
            except NotThere as missing:
                self._tell(f"waits for {missing}")
                if await self._is_stopped_within(0.2):
                    return
                continue
            await self._watch(spec, running)
            if self._stop.is_set() or not restarts:
                assert running.exit_code is not None
                self.exit_codes[spec["name"]] = running.exit_code
                return
            self.num_restarts += 1
            self._tell(f"{spec['name']} ended with {running.exit_code} and is started again")
            pause = BACKOFF_S * 2 ** (attempt - 1) if attempt else 0
            if await self._is_stopped_within(min(300, pause) / self.node.speed):
                return

    async def _watch(self, spec: Object, running: Container) -> None:
        """Probe it until it has ended."""
        ended = asyncio.create_task(asyncio.to_thread(running.process.wait))
        stopped = asyncio.create_task(self._stop.wait())
        dead = asyncio.create_task(self._probe(spec, running))
        try:
            await asyncio.wait({ended, stopped, dead}, return_when=asyncio.FIRST_COMPLETED)
            if dead.done():
                dead.result()
            if not ended.done():
                await self._end(spec, running, ended)
            await ended
        finally:
            for task in (stopped, dead):
                task.cancel()
            await asyncio.gather(stopped, dead, return_exceptions=True)
            self.is_ready = self.is_started = False
            self.node.changed()

    async def _probe(self, spec: Object, running: Container) -> None:
        """Returns when the container has to be started again."""
        probes = probes_of(spec, self.address)
        if (startup := probes.get("startup")) and not await self._first(startup, running):
            self._tell(f"{spec['name']} failed its startup probe")
            return
        self.is_started = True
        self._tell(f"{spec['name']} started")
        readiness = asyncio.create_task(
            self._follow(spec["name"], probes.get("readiness"), running)
        )
        try:
            if liveness := probes.get("liveness"):
                async for good in liveness.results(running, self.node.speed):
                    self._measure(running)
                    if good is False and not self.is_terminating:
                        self._tell(f"{spec['name']} failed its liveness probe")
                        return
            await readiness
        finally:
            readiness.cancel()
            await asyncio.gather(readiness, return_exceptions=True)

    async def _first(self, probe: Probe, running: Container) -> bool:
        async for good in probe.results(running, self.node.speed):
            if good is not None:
                return good
        raise AssertionError("results do not end")

    async def _follow(self, name: str, probe: Probe | None, running: Container) -> None:
        """Keep `is_ready` as the probe says, also while the pod ends."""
        if probe is None:
            self.is_ready = True
            self._tell(f"{name} ready")
            await asyncio.Event().wait()
            return
        async for good in probe.results(running, self.node.speed):
            if good is not None and good != self.is_ready:
                self.is_ready = good
                self._tell(f"{name} {'ready' if good else 'not ready'}")

    async def _end(self, spec: Object, running: Container, ended: "asyncio.Task[Any]") -> None:
        """As the kubelet ends a container, whether for good or to start it again."""
        self._measure(running)
        grace = float(self.spec["spec"].get("terminationGracePeriodSeconds", 30))
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                if hook := spec.get("lifecycle", {}).get("preStop"):
                    await self._pre_stop(hook, running, ended)
                self._measure(running)
                self._tell(f"{spec['name']} told to stop")
                running.signal(signal.SIGTERM)
                await asyncio.shield(ended)
                took = time.monotonic() - began
                self._tell(f"{spec['name']} ended with {running.exit_code} in {took:.1f} s")
                return
        running.signal(signal.SIGKILL)
        await ended
        self._tell(f"{spec['name']} killed after {grace:g} s")

    async def _pre_stop(self, hook: Object, running: Container, ended: Any) -> None:
        if "sleep" in hook:
            await asyncio.wait({ended}, timeout=float(hook["sleep"]["seconds"]))
        else:
            assert await run_inside(running, hook["exec"]["command"]) == 0, hook

    async def _start(self, spec: Object) -> Container:
        assert self._starting is not None
        started = self._starting.start(spec)
        self._running[spec["name"]] = started
        await asyncio.to_thread(started.wait_until_set_up)
        return started

    async def _is_stopped_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)
        return self._stop.is_set()

    def _measure(self, running: Container) -> None:
        seen = max(self.memory_bytes.get(running.name, 0), running.memory_bytes())
        self.memory_bytes[running.name] = seen

    def _tell(self, what: str) -> None:
        if not self.events or self.events[-1].what != what:
            self.events.append(Event(time.monotonic(), what))
        self.node.changed()
