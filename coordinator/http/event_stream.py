"""A response made of server-sent events, sent as they come.

Knows nothing about what the events say. Invariants: an error before the first event is an ordinary
error response; later it is an event, and nothing follows it. However the response ends, its events
are closed, and with them the work behind them, before the connection is let go.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coordinator.http.errors import Problem
from coordinator.http.wire import disconnected, to_json

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 15.0
"""Proxies commonly cut a connection on which nothing has moved for 30 to 60 seconds."""
STALLED_S = 60.0
"""A client that takes nothing for so long while text waits for it is given up."""

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # Asks nginx not to gather events into larger pieces.
    "x-accel-buffering": "no",
}


def event(data: object, event_id: str = "") -> bytes:
    """One event with JSON in it; the id is one line of ASCII."""
    head = b"id: %s\n" % event_id.encode() if event_id else b""
    return b"%sdata: %s\n\n" % (head, to_json(data))


DONE = b"data: [DONE]\n\n"


class _Stalled(Exception):
    """The client does not take what is sent to it."""


class EventStream(Response):
    """Sends events until there are no more or the client has gone."""

    def __init__(
        self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(headers={**_HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._events = events
        self._has_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises what the events raise, as long as nothing has been sent."""
        sending = asyncio.create_task(self._send_events(send))
        others = (
            asyncio.create_task(disconnected(receive)),
            asyncio.create_task(self._keep_alive(send)),
        )
        try:
            await asyncio.wait((sending, others[0]), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, *others):
                task.cancel()
            await asyncio.gather(sending, *others, return_exceptions=True)
        if not sending.cancelled():
            sending.result()

    async def _send_events(self, send: Send) -> None:
        try:
            async with aclosing(self._events):
                async for data in self._events:
                    await self._send(send, data)
        except _Stalled:
            logger.info("a client took nothing for %.0f s and was given up", STALLED_S)
            return
        except Exception as error:
            # The last place where an error can be told to the client.
            if not self._has_started:
                raise
            problem = Problem.of(error)
            if problem.status == 500:
                logger.exception("an answer was broken off")
            await self._send(send, event(problem.body()))
        await send({"type": "http.response.body"})

    async def _keep_alive(self, send: Send) -> None:
        """A comment now and then, which clients skip."""
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            await self._send(send, b": keep-alive\n\n")

    async def _send(self, send: Send, data: bytes) -> None:
        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        try:
            async with asyncio.timeout(STALLED_S):
                if not self._has_started:
                    self._has_started = True
                    await send(start)
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            raise _Stalled from None
