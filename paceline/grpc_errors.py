"""Our errors as gRPC statuses, and back."""

import grpc

from paceline.errors import (
    InvalidRequest,
    NotFound,
    Overloaded,
    PacelineError,
    Unauthenticated,
    Unavailable,
)

_STATUS: dict[type[PacelineError], grpc.StatusCode] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
}


def status_of(error: PacelineError) -> grpc.StatusCode:
    """The status that stands for an error."""
    for kind, status in _STATUS.items():
        if isinstance(error, kind):
            return status
    return grpc.StatusCode.INTERNAL


def error_of(error: grpc.aio.AioRpcError) -> PacelineError:
    """The error that a status stands for."""
    message = error.details() or error.code().name
    for kind, status in _STATUS.items():
        if status is error.code():
            return kind(message)
    return Unavailable(f"{error.code().name}: {message}")
