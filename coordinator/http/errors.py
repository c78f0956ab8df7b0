"""Errors in the shape that OpenAI's clients read.

`{"error": {"message", "type", "param", "code"}}` with a fitting status; what may be tried again
says when. Knows nothing about requests. Internal errors are logged and not described to the client.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from coordinator.http.wire import json_response
from paceline.errors import (
    Draining,
    InvalidRequest,
    NotFound,
    Overloaded,
    PacelineError,
    Unauthenticated,
    Unavailable,
)

REQUEST_ID_HEADER = "x-request-id"
REQUEST_ID_KEY = "paceline.request_id"
"""Where a request's scope has the id."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One error as a client gets it."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None
    """When to try again; None: never as it is."""

    @classmethod
    def of(cls, error: Exception) -> "Problem":
        """What a client is told about an error."""
        match error:
            case InvalidRequest(message=message, field=field):
                return cls(400, message, "invalid_request_error", field)
            case Unauthenticated(message=message):
                return cls(401, message, "invalid_request_error", None, "invalid_api_key")
            case NotFound(message=message, field=field):
                code = "model_not_found" if field == "model" else "not_found"
                return cls(404, message, "invalid_request_error", field, code)
            case Overloaded(message=message, retry_after_s=retry_s):
                return cls(429, message, "rate_limit_error", None, "overloaded", retry_s)
            case Draining(message=message, retry_after_s=retry_s):
                return cls(503, message, "service_unavailable", None, "draining", retry_s)
            case Unavailable(message=message, retry_after_s=retry_s):
                return cls(503, message, "service_unavailable", None, "unavailable", retry_s)
            case HTTPException(status_code=status, detail=detail):
                return cls(status, detail, "invalid_request_error")
            case _:
                return cls(500, "internal error", "server_error", None, "internal_error")

    def body(self) -> dict[str, Any]:
        """The JSON object, also as an event of a stream that has begun."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        """The answer to a request that has none yet."""
        retry = {}
        if self.retry_after_s is not None:
            # Clients of OpenAI read the finer one first.
            retry = {
                "retry-after": str(math.ceil(self.retry_after_s)),
                "retry-after-ms": str(math.ceil(self.retry_after_s * 1000)),
                "x-should-retry": "true",
            }
        return json_response(self.body(), self.status, {**(headers or {}), **retry})


async def paceline_error(request: Request, error: Exception) -> Response:
    """Handler of errors that were raised on purpose."""
    assert isinstance(error, PacelineError)
    return Problem.of(error).response()


async def http_error(request: Request, error: Exception) -> Response:
    """Handler of what the framework and `read_body` refuse."""
    assert isinstance(error, HTTPException)
    if error.status_code in (404, 405):
        detail = f"there is no {request.method} {request.url.path}"
        error = HTTPException(error.status_code, detail, error.headers)
    return Problem.of(error).response(error.headers)


async def client_gone(request: Request, error: Exception) -> Response:
    """Handler of requests whose client has left; nobody reads this."""
    return Response(status_code=499)  # what nginx calls it


async def internal_error(request: Request, error: Exception) -> Response:
    """Handler of everything else; the server logs the error after it."""
    # It runs outside of the middleware that adds the header elsewhere.
    return Problem.of(error).response({REQUEST_ID_HEADER: request.scope[REQUEST_ID_KEY]})
