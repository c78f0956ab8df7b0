"""All sources of the workers of one role, put together.

Each source that can change is followed by a task of its own, so that one that hangs holds nobody
up. A worker that several sources list is one, and what the first of them says of it holds.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Protocol

from paceline.errors import InvalidConfig
from paceline.workers.discovery.dns import DnsFollower
from paceline.workers.discovery.endpoint import Endpoint, Sighting, SourceState
from paceline.workers.discovery.source_names import (
    DnsSource,
    KubernetesSource,
    StaticSource,
    parse_source,
)

logger = logging.getLogger(__name__)

RESTART_S = 5.0


class Follower(Protocol):
    """Keeps the sighting of one source up to date."""

    async def run(self) -> None:
        """Never ends."""

    def worker_lost(self, address: str) -> None:
        """The worker at an address cannot be reached (any more)."""


class Sources:
    """What all of them see."""

    def __init__(self, names: Sequence[str], on_change: Callable[[], None]) -> None:
        """`names` as `source_names.parse_source` takes them; raises `InvalidConfig`."""
        self._sightings: list[Sighting] = []
        self._followers: dict[Sighting, Follower] = {}
        self._tasks: list[asyncio.Task[None]] = []
        for name in names:
            sighting = Sighting(name, on_change)
            match parse_source(name):
                case StaticSource(address):
                    sighting = Sighting.of_fixed(address)
                case DnsSource() as source:
                    self._followers[sighting] = DnsFollower(source, sighting)
                case KubernetesSource() as source:
                    _must_have_kubernetes(name)
                    self._followers[sighting] = _KubernetesFollower(source, sighting)
            self._sightings.append(sighting)

    @property
    def are_fixed(self) -> bool:
        """Whether no worker can come or go."""
        return not self._followers

    def endpoints(self) -> list[Endpoint]:
        """Where workers are, each once."""
        return _distinct(e for sighting in self._sightings for e in sighting.endpoints)

    def states(self) -> list[SourceState]:
        """Each source, in the order of the settings."""
        return [sighting.state() for sighting in self._sightings]

    def start(self) -> None:
        """Begin to follow."""
        self._tasks = [
            asyncio.create_task(_keep_running(follower, sighting))
            for sighting, follower in self._followers.items()
        ]

    async def stop(self) -> None:
        """Follow no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def worker_lost(self, address: str) -> None:
        """The worker at an address cannot be reached (any more)."""
        for follower in self._followers.values():
            follower.worker_lost(address)


class _KubernetesFollower:
    """Imports what it needs when it runs, and in a thread: that takes a second."""

    def __init__(self, source: KubernetesSource, sighting: Sighting) -> None:
        self._source = source
        self._sighting = sighting

    def worker_lost(self, address: str) -> None:
        """The API server says more, and by itself."""

    async def run(self) -> None:
        """Never ends."""
        run_watch = await asyncio.to_thread(self._make_watch)
        await run_watch()

    def _make_watch(self) -> Callable[[], Awaitable[None]]:
        from paceline.workers.discovery.kubernetes_watch import SliceWatch

        return SliceWatch(self._source, self._sighting).run


async def _keep_running(follower: Follower, sighting: Sighting) -> None:
    while True:
        try:
            await follower.run()
        except Exception as error:
            logger.exception("%s: following it failed", sighting.source)
            sighting.failed(f"following it failed: {error!r}")
        await asyncio.sleep(RESTART_S)


def _must_have_kubernetes(name: str) -> None:
    if find_spec("kubernetes") is None:
        raise InvalidConfig(
            f"the source {name} needs the package kubernetes, which is not installed; expected "
            "paceline[coordinator] to be, or addresses of the form host:port or dns:///name:port"
        )


def _distinct(endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    found: list[Endpoint] = []
    seen: set[str] = set()
    for endpoint in endpoints:
        names = {endpoint.address, endpoint.uid} - {""}
        if not names & seen:
            found.append(endpoint)
        seen |= names
    return found
