"""The server's end of a stream of rounds: from messages to the device thread and back.

When the stream ends, however it ends, its sequences are closed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from paceline.engine.device_worker import Caller, DeviceWorker, OfSequence
from paceline.rounds import WorkerLoad

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
RoundT = TypeVar("RoundT", bound=OfSequence)
ResultT = TypeVar("ResultT", bound=OfSequence)


async def serve_rounds(
    worker: DeviceWorker[RoundT, ResultT],
    requests: AsyncIterator[RequestT],
    read: Callable[[RequestT], tuple[Sequence[RoundT], Sequence[str]]],
    write: Callable[[Sequence[ResultT], WorkerLoad], ResponseT],
) -> AsyncIterator[ResponseT]:
    """Answer one stream. `read` gives a request's rounds and the ids of closed sequences."""
    loop = asyncio.get_running_loop()
    outbox: asyncio.Queue[tuple[Sequence[ResultT], WorkerLoad] | None] = asyncio.Queue()

    def deliver(results: Sequence[ResultT], load: WorkerLoad) -> None:
        loop.call_soon_threadsafe(outbox.put_nowait, (results, load))

    caller: Caller[ResultT] = Caller(deliver)

    async def read_all() -> None:
        try:
            async for request in requests:
                rounds, closed = read(request)
                worker.submit(caller, rounds, closed)
        finally:
            outbox.put_nowait(None)

    reader = asyncio.create_task(read_all())
    try:
        while (ready := await outbox.get()) is not None:
            yield write(*ready)
        await reader
    finally:
        reader.cancel()
        worker.leave(caller)
