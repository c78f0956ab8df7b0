"""Calls over gRPC need a key: health alone is open, since whoever probes has none."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health

from paceline.api_keys import ApiKeys
from paceline.errors import Unauthenticated
from paceline.grpc_errors import status_of

METADATA_KEY = "authorization"

_OPEN = f"/{health.SERVICE_NAME}/"

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # only for mypy
    """Refuses calls without a key that is known here."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Hand a call on, or refuse it before anything of it is read."""
        if not handler_call_details.method.startswith(_OPEN):
            try:
                self._keys.tenant(_authorization(handler_call_details.invocation_metadata))
            except Unauthenticated as error:
                return _refusing(error)
        return await continuation(handler_call_details)


def tenant_of(keys: ApiKeys | None, context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Whose call it is; empty where no keys are asked for."""
    if keys is None:
        return ""
    return keys.tenant(_authorization(context.invocation_metadata()))


def _authorization(metadata: Any) -> str | None:
    return next((value for key, value in metadata or () if key == METADATA_KEY), None)


def _refusing(error: Unauthenticated) -> Any:
    async def refuse(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        await context.abort(status_of(error), error.message)
        yield b""  # never: aborting raises

    # Of two streams, whatever the method: such a handler waits for no message.
    return grpc.stream_stream_rpc_method_handler(refuse)
