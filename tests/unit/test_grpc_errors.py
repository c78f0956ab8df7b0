"""Errors as statuses and back: what a program needs of them comes along."""

import grpc
import pytest

from paceline.errors import (
    Draining,
    InvalidRequest,
    NotFound,
    Overloaded,
    PacelineError,
    Unauthenticated,
    Unavailable,
)
from paceline.grpc_errors import MAX_MESSAGE_LENGTH, detailed_status_of, error_of, status_of

ERRORS = [
    InvalidRequest("max_tokens: is -1; expected at least 0", "max_tokens"),
    InvalidRequest("something – with a dash"),
    NotFound("request_id: no request 'r' is on record", "request_id"),
    Overloaded("64 requests are running", 2.5),
    Unavailable("no target worker is ready", 0.25),
    Draining("the coordinator is draining"),
]


def received(error: PacelineError, with_details: bool = True) -> PacelineError:
    """As the client has it."""
    status = detailed_status_of(error)
    trailers = grpc.aio.Metadata(*(status.trailing_metadata if with_details else ()))
    return error_of(
        grpc.aio.AioRpcError(status.code, grpc.aio.Metadata(), trailers, status.details)
    )


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.message)
def test_an_error_comes_back_as_it_was_raised(error: PacelineError) -> None:
    found = received(error)
    assert type(found) is type(error)
    assert vars(found) == vars(error)
    assert found.reason == error.reason != ""


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.message)
def test_without_details_the_status_still_says_what_kind_it_is(error: PacelineError) -> None:
    found = received(error, with_details=False)
    assert isinstance(error, type(found))
    assert (found.message, status_of(found)) == (error.message, status_of(error))


def test_an_error_without_a_reason_has_its_status() -> None:
    assert isinstance(received(Unauthenticated("no key was shown")), Unauthenticated)


def test_a_message_that_would_not_fit_into_the_trailers_is_cut() -> None:
    found = received(Unavailable("x" * 10000, 3.0))
    assert isinstance(found, Unavailable)
    assert found.message == "x" * MAX_MESSAGE_LENGTH + "…"
    assert found.retry_after_s == 3.0
