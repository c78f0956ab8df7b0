"""Our errors as gRPC statuses, and back.

The coordinator's service adds the details that Google's APIs have: `ErrorInfo` with a reason for
programs, and `RetryInfo` where waiting helps (`protos/paceline/v1/coordinator.proto`). They travel
in trailers, whose size is limited: a very long message is cut.
"""

from typing import Any, NamedTuple, cast

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from paceline.errors import (
    Draining,
    InvalidRequest,
    NotFound,
    Overloaded,
    PacelineError,
    Unauthenticated,
    Unavailable,
)

DOMAIN = "paceline"
"""Whose reasons they are."""
MAX_MESSAGE_LENGTH = 1500
"""Characters. The message travels twice, and trailers of 8 KB are dropped."""

_STATUS: dict[type[PacelineError], grpc.StatusCode] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
}
_KINDS: dict[str, type[PacelineError]] = {
    kind.reason: kind for kind in (InvalidRequest, NotFound, Overloaded, Unavailable, Draining)
}


class _Details(NamedTuple):
    """What a status says beside its code and message."""

    reason: str = ""
    field: str | None = None
    retry_after_s: float | None = None


def status_of(error: PacelineError) -> grpc.StatusCode:
    """The status that stands for an error."""
    for kind, status in _STATUS.items():
        if isinstance(error, kind):
            return status
    return grpc.StatusCode.INTERNAL


def detailed_status_of(error: PacelineError) -> grpc.Status:
    """The same with the details of the coordinator's service."""
    message = error.message
    if len(message) > MAX_MESSAGE_LENGTH:
        message = message[:MAX_MESSAGE_LENGTH] + "…"
    status = Status(code=status_of(error).value[0], message=message)
    field = error.field if isinstance(error, InvalidRequest | NotFound) else None
    metadata = {"field": field} if field else {}
    _add(status, ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata))
    if isinstance(error, Overloaded | Unavailable):
        retry = RetryInfo()
        retry.retry_delay.FromMilliseconds(round(1000 * error.retry_after_s))
        _add(status, retry)
    return rpc_status.to_status(status)


def error_of(error: grpc.aio.AioRpcError) -> PacelineError:
    """The error that a status stands for."""
    message, told = error.details() or error.code().name, _details_of(error)
    kind = _KINDS.get(told.reason) or _kind_of(error.code())
    if kind is None:
        return Unavailable(f"{error.code().name}: {message}")
    if issubclass(kind, InvalidRequest | NotFound):
        return kind(message, told.field)
    if issubclass(kind, Overloaded | Unavailable) and told.retry_after_s is not None:
        return kind(message, told.retry_after_s)
    return kind(message)


def _kind_of(code: grpc.StatusCode) -> type[PacelineError] | None:
    return next((kind for kind, status in _STATUS.items() if status is code), None)


def _add(status: Status, detail: Message) -> None:
    status.details.add().Pack(detail)


def _details_of(error: grpc.aio.AioRpcError) -> _Details:
    try:
        status = rpc_status.from_call(cast(Any, error))
    except (ValueError, DecodeError):  # of another message, or no details at all
        return _Details()
    told = _Details()
    info, retry = ErrorInfo(), RetryInfo()
    for detail in status.details if status is not None else ():
        if detail.Unpack(info) and info.domain == DOMAIN:
            told = told._replace(reason=info.reason, field=info.metadata.get("field"))
        elif detail.Unpack(retry):
            told = told._replace(retry_after_s=retry.retry_delay.ToMilliseconds() / 1000)
    return told
