"""What sources of workers see, and ways to wait for it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from session_stores import until

from paceline.workers.discovery.endpoint import Endpoint, SourceState
from paceline.workers.discovery.sources import Sources


class Seen:
    """What the sources see, and a way to wait for it."""

    def __init__(self, *names: str) -> None:
        self.num_changes = 0
        self.sources = Sources(names, self._changed)

    def _changed(self) -> None:
        self.num_changes += 1

    @property
    def endpoints(self) -> list[Endpoint]:
        return self.sources.endpoints()

    @property
    def addresses(self) -> list[str]:
        return sorted(endpoint.address for endpoint in self.endpoints)

    @property
    def state(self) -> SourceState:
        return self.sources.states()[0]

    async def until_addresses(self, *addresses: str) -> None:
        await until(lambda: self.addresses == sorted(addresses))

    async def until_problem(self, *words: str) -> str:
        await until(lambda: all(word in self.state.problem for word in words))
        return self.state.problem


@asynccontextmanager
async def seeing(*names: str) -> AsyncIterator[Seen]:
    seen = Seen(*names)
    seen.sources.start()
    try:
        yield seen
    finally:
        await seen.sources.stop()
