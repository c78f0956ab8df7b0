"""uvicorn as the coordinator runs it: on a socket of ours, without signal handlers of its own.

While it drains it goes on answering, so that probes and late clients are told, but keeps no
connection behind an answer: who comes back connects anew, and so elsewhere.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.http.errors import Problem
from paceline.addresses import with_port
from paceline.errors import Draining, InvalidConfig

STOP_GRACE_S = 2
"""How long answers that have ended may take to get to their clients."""

_CLOSE = (b"connection", b"close")
_TOO_LATE = Problem.of(Draining("the coordinator shut down before the request was complete"))


class HttpServer:
    """Serves one application on one port."""

    def __init__(
        self, app: ASGIApp, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> None:
        """Bind the port; raises `InvalidConfig` if that cannot be done."""
        self._app = app
        self._listener = _bind(host, port)
        self._is_draining = False
        self._server = _Server(
            uvicorn.Config(
                self._answer,
                interface="asgi3",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=STOP_GRACE_S,
                ssl_context_factory=None if tls is None else lambda *_: tls,
            )
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that it is bound to."""
        port: int = self._listener.getsockname()[1]
        return port

    def start(self) -> None:
        """Listen, and begin to answer."""
        self._listener.listen()
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))

    def drain(self) -> None:
        """Close connections that are idle now, and the others with their answers."""
        self._is_draining = True
        for connection in list(self._server.server_state.connections):
            connection.shutdown()

    async def stop(self) -> None:
        """Listen no more, and end what still runs after `STOP_GRACE_S`."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def send_and_close(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                if self._is_draining:
                    message = {**message, "headers": [*message["headers"], _CLOSE]}
            await send(message)

        try:
            await self._app(scope, receive, send_and_close)
        except asyncio.CancelledError:
            # The end of `STOP_GRACE_S`; whoever is still sending a request is told so.
            if not self._is_draining:
                raise
            if scope["type"] == "http" and not has_begun:
                await _TOO_LATE.response()(scope, receive, send_and_close)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none: draining is ours."""
        yield


def _bind(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        message = f"http_port: cannot listen on {with_port(host, port)}: {error.strerror}."
        raise InvalidConfig(message) from error
    return listener
