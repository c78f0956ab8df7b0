"""The span of each `Generate`, and a line about it for those who debug. Knows no answer."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter

from coordinator.request_spans import CALLERS_FAULTS
from paceline.errors import PacelineError
from paceline.grpc_errors import status_of
from paceline.logs import bind_log_context
from paceline.telemetry.span import enter_span
from paceline.telemetry.tracer import Tracer

logger = logging.getLogger(__name__)

METHOD = "paceline.v1.CoordinatorService/Generate"
REQUEST_ID_KEY = "x-request-id"


def headers_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> dict[str, str]:
    """What a call brought that is text."""
    return {key: value for key, value in metadata or () if isinstance(value, str)}


@contextmanager
def served(tracer: Tracer, operation: str, headers: Mapping[str, str]) -> Iterator[None]:
    """For as long as the call is answered; its errors pass through."""
    started = perf_counter()
    span = None
    if tracer.is_on:
        attributes: dict[str, str | bool] = {
            "gen_ai.operation.name": operation,
            "gen_ai.request.stream": True,
            "rpc.system.name": "grpc",
            "rpc.method": METHOD,
        }
        if REQUEST_ID_KEY in headers:
            attributes["paceline.request.id"] = headers[REQUEST_ID_KEY]
        span = tracer.serve(operation, headers, attributes)
    enter_span(span)
    if REQUEST_ID_KEY in headers:
        bind_log_context(request_id=headers[REQUEST_ID_KEY])
    code = "OK"
    try:
        yield
    except PacelineError as error:
        code = status_of(error).name
        if span is not None:
            span.fail(type(error).__name__, not isinstance(error, CALLERS_FAULTS))
        raise
    except (GeneratorExit, asyncio.CancelledError):
        code = "CANCELLED"
        raise
    except Exception as error:
        code = "UNKNOWN"
        if span is not None:
            span.fail(type(error).__name__)
        raise
    finally:
        if span is not None:
            span.set({"rpc.response.status_code": code})
            span.end()
        elapsed_ms = 1000 * (perf_counter() - started)
        logger.debug("Generate: %s after %.0f ms", code, elapsed_ms)
