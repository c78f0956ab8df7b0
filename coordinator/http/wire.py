"""JSON and bodies of limited size, and whether the client is still there.

Knows nothing about what is said.
"""

import asyncio
import json
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive

T = TypeVar("T")

MAX_BODY_BYTES = 8 << 20

# Valid inside JSON strings, but many readers of event streams take them for line ends.
_LINE_ENDS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}


class ClientGone(Exception):
    """The client has closed its connection before its answer was complete."""


def to_json(value: object) -> bytes:
    """Compact JSON in UTF-8 that is one line to every reader."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, escaped in _LINE_ENDS.items():
        text = text.replace(character, escaped)
    return text.encode()


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer in JSON."""
    return Response(to_json(value), status, headers, "application/json")


async def read_body(request: Request) -> bytes:
    """The body of a request that says it is JSON.

    Raises:
        HTTPException: it is something else (415) or too large (413).
        ClientGone: the client left before it was complete.
    """
    media_type = request.headers.get("content-type", "")
    if media_type.partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(
            415, f"content-type: is {media_type or 'missing'}; expected application/json"
        )
    too_large = HTTPException(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise too_large
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise too_large
    except ClientDisconnect:
        raise ClientGone from None
    return bytes(body)


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone. For a request whose body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled as soon as the client goes away.

    Raises:
        ClientGone: it went away first; `work` has ended by then.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
