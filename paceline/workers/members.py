"""The workers of one role: as many as its sources list, one for each that they list.

A worker that is listed no more is left at once, and its sequences go on elsewhere; one that is
listed as closed keeps its sequences and gets no new ones. Another pod at an address is another
worker.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from paceline.workers.discovery.endpoint import SourceState
from paceline.workers.discovery.sources import Sources
from paceline.workers.worker import Worker

logger = logging.getLogger(__name__)

NewWorker = Callable[[str, Callable[[], None]], Worker]
"""A worker at an address, which calls back whenever it changes."""


class Members:
    """The targets, or the drafts."""

    def __init__(
        self, sources: Sequence[str], new_worker: NewWorker, on_change: Callable[[], None]
    ) -> None:
        """Raises `InvalidConfig`."""
        self._new_worker = new_worker
        self._on_change = on_change
        self._workers: dict[tuple[str, str], Worker] = {}
        self._is_started = False
        self._leaving: set[asyncio.Task[None]] = set()
        self._sources = Sources(sources, self._update)
        self._update()

    @property
    def workers(self) -> list[Worker]:
        """All of them, in the order of their sources."""
        return list(self._workers.values())

    @property
    def are_fixed(self) -> bool:
        """Whether none can come or go."""
        return self._sources.are_fixed

    def source_states(self) -> list[SourceState]:
        """What each source says."""
        return self._sources.states()

    def start(self) -> None:
        """Begin to follow the sources, and to connect to all workers."""
        self._is_started = True
        for worker in self.workers:
            worker.start()
        self._sources.start()

    async def stop(self) -> None:
        """End all connections."""
        self._is_started = False
        await self._sources.stop()
        await asyncio.gather(*self._leaving, *(worker.stop() for worker in self.workers))

    def _update(self) -> None:
        """Have one worker for each endpoint."""
        before, self._workers = self._workers, {}
        for endpoint in self._sources.endpoints():
            key = endpoint.address, endpoint.uid
            worker = before.pop(key, None) or self._new(endpoint.address)
            worker.closed = endpoint.closed
            self._workers[key] = worker
        for worker in before.values():
            self._leave(worker)
        self._on_change()

    def _new(self, address: str) -> Worker:
        worker = self._new_worker(address, lambda: self._worker_changed(worker))
        if self._is_started:
            logger.info("%s worker %s is listed", worker.role, address)
            worker.start()
        return worker

    def _leave(self, worker: Worker) -> None:
        logger.info("%s worker %s is listed no more", worker.role, worker.address)
        task = asyncio.create_task(worker.stop())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _worker_changed(self, worker: Worker) -> None:
        if not worker.is_connected:
            self._sources.worker_lost(worker.address)
        self._on_change()
