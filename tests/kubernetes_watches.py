"""One watch of EndpointSlices, as the API server of the tests answers it, and its errors."""

import asyncio
import json
from typing import Any

from aiohttp import web
from kubernetes_objects import Change, Object, Objects


class Watch:
    def __init__(self, request: web.Request, matches: Any, silent: asyncio.Event) -> None:
        self._request = request
        self._matches = matches
        self._silent = silent
        self._orders: asyncio.Queue[Change | Object | str] = asyncio.Queue()
        self._has_bookmarks = request.query.get("allowWatchBookmarks") in ("true", "True")
        self._timeout_s = float(request.query.get("timeoutSeconds") or 3600)
        self.version = int(request.query.get("resourceVersion") or 0)

    def tell(self, order: Change | Object | str) -> None:
        self._orders.put_nowait(order)

    async def serve(self, objects: Objects) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(self._request)
        try:
            async with asyncio.timeout(self._timeout_s):
                while (order := await self._orders.get()) != "end":
                    if order == "cut":
                        assert self._request.transport is not None
                        self._request.transport.abort()
                        break
                    await self._send(response, self._event(order, objects))
        except TimeoutError:
            await self._send(response, self._event("bookmark", objects))
        if self._silent.is_set():
            await asyncio.Event().wait()
        return response

    def _event(self, order: Change | Object | str, objects: Objects) -> Object | None:
        if isinstance(order, Change):
            return order.event(self._matches)
        if not isinstance(order, str):
            return order
        metadata = {"resourceVersion": str(objects.version), "creationTimestamp": None}
        bookmark = {"kind": "EndpointSlice", "metadata": metadata, "endpoints": None}
        return {"type": "BOOKMARK", "object": bookmark} if self._has_bookmarks else None

    async def _send(self, response: web.StreamResponse, event: Object | None) -> None:
        if event is not None and not self._silent.is_set():
            await response.write(json.dumps(event).encode() + b"\n")


def error(code: int, message: str) -> Object:
    status = {"kind": "Status", "status": "Failure", "code": code, "message": message}
    return {"type": "ERROR", "object": status}


def status(code: int, message: str) -> web.Response:
    return web.json_response(error(code, message)["object"], status=code)
