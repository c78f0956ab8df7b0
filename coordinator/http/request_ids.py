"""Every response carries an `x-request-id`: the client's own, or one made up here."""

import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.http.errors import REQUEST_ID_HEADER as HEADER
from coordinator.http.errors import REQUEST_ID_KEY, Problem
from paceline.errors import InvalidRequest
from paceline.logs import bind_log_context

MAX_LENGTH = 128


class RequestIds:
    """Middleware; the id is for logs and traces, and may come twice."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = Headers(scope=scope).get(HEADER, "")
        is_valid = len(asked) <= MAX_LENGTH and asked.isascii() and asked.isprintable()
        request_id = asked if asked and is_valid else secrets.token_hex(16)
        scope[REQUEST_ID_KEY] = request_id
        bind_log_context(request_id=request_id)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        if is_valid:
            await self._app(scope, receive, send_with_id)
            return
        refusal = InvalidRequest(
            f"{HEADER}: expected at most {MAX_LENGTH} printable ASCII characters", HEADER
        )
        await Problem.of(refusal).response()(scope, receive, send_with_id)
