"""Counts the gRPC calls of a server: those that run, and how the others ended.

Only calls of the server's own service and methods it has, so that nobody makes up a label. Plain
numbers; whoever shows them reads them.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import grpc

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]
Unary = Callable[[Any, Any], Awaitable[Any]]
Stream = Callable[[Any, Any], AsyncGenerator[Any, None]]


class CallCounts(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # only for mypy it has some
    """An interceptor for one server; should be the first one, to see what the others refuse."""

    def __init__(self, service_name: str) -> None:
        self._prefix = f"/{service_name}/"
        self.in_flight: Counter[str] = Counter()
        self.ended: Counter[tuple[str, ...]] = Counter()

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The handler, with the call counted around it."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method.removeprefix(self._prefix)
        if handler is None or method == handler_call_details.method:
            return handler
        kind = "stream" if handler.request_streaming else "unary"
        if handler.response_streaming:
            name = f"{kind}_stream"
            return handler._replace(**{name: self._stream(method, getattr(handler, name))})
        name = f"{kind}_unary"
        return handler._replace(**{name: self._unary(method, getattr(handler, name))})

    def _unary(self, method: str, behaviour: Unary) -> Unary:
        async def counted(request: Any, context: Any) -> Any:
            with self._counted(method, context):
                return await behaviour(request, context)

        return counted

    def _stream(self, method: str, behaviour: Stream) -> Stream:
        async def counted(request: Any, context: Any) -> AsyncGenerator[Any, None]:
            with self._counted(method, context):
                async with aclosing(behaviour(request, context)) as responses:
                    async for response in responses:
                        yield response

        return counted

    @contextmanager
    def _counted(self, method: str, context: Any) -> Iterator[None]:
        self.in_flight[method] += 1
        code = "CANCELLED"
        try:
            yield
            code = (context.code() or grpc.StatusCode.OK).name
        except grpc.aio.AbortError:
            code = context.code().name
            raise
        except Exception:
            code = "UNKNOWN"
            raise
        finally:
            self.in_flight[method] -= 1
            self.ended[method, code] += 1
