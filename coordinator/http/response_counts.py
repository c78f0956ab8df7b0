"""Counts the responses that begin, by the template of their path and the class of their status."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.metrics import Metrics

NO_ROUTE = "none"
"""Of paths that are not served: what clients may make up is no label."""


class ResponseCounts:
    """Middleware."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", NO_ROUTE)
                self._metrics.responded(route, message["status"])
            await send(message)

        await self._app(scope, receive, send_counted)
