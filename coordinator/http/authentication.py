"""Requests over HTTP need a key, where keys are asked for at all.

Runs before anything of a request is read. Probes, metrics and the version stay open: whoever asks
for those has no key, and they tell nothing of requests.
"""

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.http.errors import Problem
from paceline.api_keys import ApiKeys
from paceline.errors import Unauthenticated

OPEN_PATHS = ("/health", "/ready", "/metrics", "/version")

_TENANT_KEY = "paceline.tenant"
"""Where a request's scope says whose it is."""


class Authentication:
    """Middleware that lets callers with a key through, and notes whose it is."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                scope[_TENANT_KEY] = self._keys.tenant(Headers(scope=scope).get("authorization"))
            except Unauthenticated as error:
                headers = {"www-authenticate": "Bearer"}
                await Problem.of(error).response(headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def tenant_of(request: HTTPConnection) -> str:
    """Whose request it is; empty where no keys are asked for."""
    tenant: str = request.scope.get(_TENANT_KEY, "")
    return tenant
