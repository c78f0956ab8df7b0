"""The server's end of streams of rounds: from messages to the device thread and back.

When a stream ends, however it ends, its sequences are closed. A worker that drains says so on every
stream, goes on with the sequences that it has, and ends the streams when there are none left or its
time is up: their callers send the spans elsewhere. Knows nothing about what a round is.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Generic, TypeVar

from paceline.engine.device_worker import Caller, DeviceWorker
from paceline.engine.stepper import OfSequence
from paceline.rounds import WorkerLoad

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
RoundT = TypeVar("RoundT", bound=OfSequence)
ResultT = TypeVar("ResultT", bound=OfSequence)

IDLE_POLL_S = 0.02
"""How often a draining worker looks whether its last sequence has ended."""


_Outbox = asyncio.Queue[tuple[Sequence[ResultT], WorkerLoad] | None]
"""What one caller is to be told; None: nothing more."""


class RoundStreams(Generic[RoundT, ResultT]):
    """The streams of one worker's callers."""

    def __init__(self, worker: DeviceWorker[RoundT, ResultT]) -> None:
        self._worker = worker
        self._outboxes: set[_Outbox[ResultT]] = set()
        self._is_draining = False
        self._has_ended = False

    async def serve(
        self,
        requests: AsyncIterator[RequestT],
        read: Callable[[RequestT], tuple[Sequence[RoundT], Sequence[str]]],
        write: Callable[[Sequence[ResultT], WorkerLoad], ResponseT],
    ) -> AsyncIterator[ResponseT]:
        """Answer one stream. `read` gives a request's rounds and the ids of closed sequences."""
        loop = asyncio.get_running_loop()
        outbox: _Outbox[ResultT] = asyncio.Queue()

        def deliver(results: Sequence[ResultT], load: WorkerLoad) -> None:
            loop.call_soon_threadsafe(outbox.put_nowait, (results, load))

        caller: Caller[ResultT] = Caller(deliver)

        async def read_all() -> None:
            try:
                async for request in requests:
                    rounds, closed = read(request)
                    self._worker.submit(caller, rounds, closed)
            finally:
                outbox.put_nowait(None)

        if self._has_ended:
            return
        self._outboxes.add(outbox)
        if self._is_draining:
            outbox.put_nowait(([], self._worker.load))
        reader = asyncio.create_task(read_all())
        try:
            while (ready := await outbox.get()) is not None:
                results, load = ready
                yield write(results, replace(load, draining=self._is_draining))
            if not self._has_ended:
                await reader
        finally:
            self._outboxes.discard(outbox)
            reader.cancel()
            self._worker.leave(caller)

    async def drain(self, timeout_s: float) -> None:
        """Ask for no new sequences, and end all streams when the running ones have ended.

        After `timeout_s` at the latest: what is left then is lost to its callers, who do not need
        this worker for it.
        """
        self._is_draining = True
        for outbox in self._outboxes:
            outbox.put_nowait(([], self._worker.load))
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._worker.is_idle:  # noqa: ASYNC110  # the device thread tells nobody
                    await asyncio.sleep(IDLE_POLL_S)
        self._has_ended = True
        for outbox in self._outboxes:
            outbox.put_nowait(None)
