"""The caller's end of one stream of rounds.

Rounds that are sent in the same tick of the event loop travel in one message. A result whose round
is not awaited (any more) is dropped. When the stream breaks, everyone who waits is told.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import grpc

from paceline.rounds import WorkerLoad

SILENT_S = 20.0
"""A worker that owes answers and says nothing for so long may be stuck, though its connection is
good. No harm if it only computes: it is one to ask later then."""


class WorkerLost(Exception):
    """The worker cannot be reached, or its stream broke; the sequence can go on elsewhere."""


@dataclass(slots=True)
class RoundBytes:
    """Bytes of the messages of one round, both ways, for whoever wants to know."""

    sent: int = 0
    received: int = 0


class Round(Protocol):
    """A round of one sequence, or a result of one."""

    @property
    def sequence_id(self) -> str:
        """The sequence."""

    @property
    def round(self) -> int:
        """The number of the round."""


RoundT = TypeVar("RoundT", bound=Round)
ResultT = TypeVar("ResultT", bound=Round)


class RoundClient(Generic[RoundT, ResultT]):
    """Sends rounds on one call and hands out their results."""

    def __init__(
        self,
        call: "grpc.aio.StreamStreamCall[Any, Any]",
        encode: Callable[[RoundT], Any],
        decode: Callable[[Any], ResultT],
        write: Callable[[Sequence[Any], Sequence[str]], Any],
        read: Callable[[Any], tuple[Sequence[Any], WorkerLoad]],
    ) -> None:
        """`encode` makes a message of a round, `decode` a result of a message; `write` puts
        messages into a request, `read` takes them out of a response."""
        self._call = call
        self._encode = encode
        self._decode = decode
        self._write = write
        self._read = read
        self._outbox: list[tuple[str, Any]] = []
        self._closed_ids: list[str] = []
        self._has_news = asyncio.Event()
        self._waiting: dict[str, _Waiting[ResultT]] = {}
        self._lost: str | None = None
        self._owes_since: float | None = None
        self.load = WorkerLoad()

    @property
    def is_silent(self) -> bool:
        """Whether the worker has said nothing for long although it was asked for something."""
        return self._owes_since is not None and time.monotonic() - self._owes_since > SILENT_S

    async def run(self, on_draining: Callable[[], None]) -> None:
        """Carry the stream until it ends; raises `WorkerLost` with the reason.

        `on_draining` is called when the worker says that it shuts down.
        """
        reader = asyncio.create_task(self._read_all(on_draining))
        writer = asyncio.create_task(self._write_all())
        writer.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            if not reader.done():
                raise WorkerLost(f"cannot write to the stream: {writer.exception()!r}")
            await reader
            raise WorkerLost("the worker ended the stream")
        except grpc.aio.AioRpcError as error:
            raise WorkerLost(f"{error.code().name}: {error.details()}") from error
        finally:
            reader.cancel()
            writer.cancel()
            self._call.cancel()
            self._lost = "the stream to the worker broke"
            for waiting in self._waiting.values():
                waiting.results.put_nowait(None)

    async def results(
        self, round: RoundT, counted: RoundBytes | None = None
    ) -> AsyncGenerator[ResultT, None]:
        """Send a round and yield its results as they come; the caller knows which is the last.

        Their bytes are counted in `counted`, if that is given.
        """
        if self._lost is not None:
            raise WorkerLost(self._lost)
        # Encoded here, so that a value that cannot be sent harms nobody but its own sequence.
        message = self._encode(round)
        if counted is not None:
            counted.sent += message.ByteSize()
        self._outbox.append((round.sequence_id, message))
        waiting = self._waiting[round.sequence_id] = _Waiting[ResultT](round.round, counted)
        self._has_news.set()
        try:
            while True:
                result = await waiting.results.get()
                if result is None:
                    raise WorkerLost(self._lost or "the stream to the worker broke")
                yield result
        finally:
            if self._waiting.get(round.sequence_id) is waiting:
                del self._waiting[round.sequence_id]

    def close_sequence(self, sequence_id: str) -> None:
        """The sequence has ended; the worker frees what it holds.

        What is closed is read before the rounds of the same message, so that a sequence can begin
        again in it; a round that has not gone out yet must not do that by mistake.
        """
        self._outbox = [(id, message) for id, message in self._outbox if id != sequence_id]
        self._closed_ids.append(sequence_id)
        self._has_news.set()

    def _hand_out(self, message: Any) -> None:
        result = self._decode(message)
        waiting = self._waiting.get(result.sequence_id)
        if waiting is None or waiting.round != result.round:
            return
        if waiting.counted is not None:
            waiting.counted.received += message.ByteSize()
        waiting.results.put_nowait(result)

    async def _read_all(self, on_draining: Callable[[], None]) -> None:
        async for response in self._call:
            was_draining = self.load.draining
            messages, self.load = self._read(response)
            if self.load.draining and not was_draining:
                on_draining()
            for message in messages:
                self._hand_out(message)
            self._owes_since = time.monotonic() if self._waiting else None

    async def _write_all(self) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            messages, closed = [message for _, message in self._outbox], self._closed_ids
            self._outbox, self._closed_ids = [], []
            if messages and self._owes_since is None:
                self._owes_since = time.monotonic()
            await self._call.write(self._write(messages, closed))


class _Waiting(Generic[ResultT]):
    """A round whose results are awaited."""

    def __init__(self, round: int, counted: RoundBytes | None) -> None:
        self.round = round
        self.counted = counted
        self.results: asyncio.Queue[ResultT | None] = asyncio.Queue()
        """None: the stream broke."""
