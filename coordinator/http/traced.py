"""Middleware: the span of each request for an answer, and a line about it for those who debug.

Begins before the body is read and ends when the last byte has gone out. Knows no body: what is
asked and answered is told to the span where that is known (`coordinator.request_spans`).
"""

import logging
from time import perf_counter

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.http.errors import REQUEST_ID_KEY
from paceline.telemetry.names import CHAT, TEXT_COMPLETION
from paceline.telemetry.span import Attributes, Span, enter_span
from paceline.telemetry.tracer import Tracer

logger = logging.getLogger(__name__)

OPERATIONS = {"/v1/chat/completions": CHAT, "/v1/completions": TEXT_COMPLETION}


class Traced:
    """Knows which requests want an answer; lets all others through."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        operation = OPERATIONS.get(scope["path"]) if is_post else None
        if operation is None:
            await self._app(scope, receive, send)
            return
        started = perf_counter()
        headers = Headers(scope=scope)
        span = None
        if self._tracer.is_on:
            span = self._tracer.serve(operation, headers, _attributes(operation, scope, headers))
        enter_span(span)
        status = 0

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        except Exception as error:
            status = 500
            if span is not None:
                span.fail(type(error).__name__)
            raise
        finally:
            if span is not None:
                _end(span, status)
            elapsed_ms = 1000 * (perf_counter() - started)
            logger.debug("POST %s: %d after %.0f ms", scope["path"], status, elapsed_ms)


def _attributes(operation: str, scope: Scope, headers: Headers) -> Attributes:
    host, port = scope.get("server") or ("", None)
    attributes = {
        "gen_ai.operation.name": operation,
        "http.request.method": scope["method"],
        "http.route": scope["path"],
        "url.path": scope["path"],
        "url.scheme": scope["scheme"],
        "network.protocol.version": scope["http_version"],
        "server.address": host,
        "paceline.request.id": scope[REQUEST_ID_KEY],
    }
    if port:
        attributes["server.port"] = port
    if agent := headers.get("user-agent"):
        attributes["user_agent.original"] = agent
    return attributes


def _end(span: Span, status: int) -> None:
    """Without a status the client was gone before there was one."""
    if status:
        span.set({"http.response.status_code": status})
    if status >= 500:
        span.fail(str(status))
    span.end()
