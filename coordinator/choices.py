"""The choices of one request, made at the same time, as one stream of steps.

Knows nothing about tokens. The others follow once the first one's prompt has been read, so that
they find its KV. What ends or breaks one leaves the others alone: they go on to their end, and only
then is the error raised. Whoever takes no steps holds all of them up; closing the stream ends all.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

Step = TypeVar("Step")


class _Ended:
    """The last item of a stream, with the error that broke it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


async def interleave(
    streams: Sequence[AsyncGenerator[Step, None]], may_follow: asyncio.Event
) -> AsyncGenerator[Step, None]:
    """The steps of all streams as they come; those behind the first begin at `may_follow`."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as steps:
            async for step in steps:
                yield step
        return
    queue: asyncio.Queue[tuple[int, Step | _Ended]] = asyncio.Queue()
    places = [asyncio.Semaphore(1) for _ in streams]  # one step in the queue for each, in turn

    async def run(index: int) -> None:
        if index > 0:
            await may_follow.wait()
        try:
            async with aclosing(streams[index]) as steps:
                async for step in steps:
                    await places[index].acquire()
                    queue.put_nowait((index, step))
        except Exception as error:
            queue.put_nowait((index, _Ended(error)))
        else:
            may_follow.set()
            queue.put_nowait((index, _Ended()))

    tasks = [asyncio.create_task(run(index)) for index in range(len(streams))]
    num_running, failure = len(streams), None
    try:
        while num_running:
            index, item = await queue.get()
            places[index].release()
            if not isinstance(item, _Ended):
                yield item
                continue
            num_running -= 1
            failure = failure or item.error
            if item.error is not None and not may_follow.is_set():
                break  # the first has failed before the others began, and so would they
        if failure is not None:
            raise failure
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
