"""Where spans begin: at a request from outside, or at a round from another process.

Whether there are any is up to the variables that OpenTelemetry defines. Without somewhere to send
spans nothing of it is loaded.
"""

import asyncio
from collections.abc import Mapping
from time import time_ns
from typing import TYPE_CHECKING

from paceline.config import library_environment
from paceline.errors import InvalidConfig
from paceline.telemetry.span import Attributes, Span

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from paceline.telemetry.recorder import Recorder

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class Tracer:
    """Begins the spans of one process."""

    def __init__(self, recorder: "Recorder | None" = None) -> None:
        self._recorder = recorder

    @property
    def is_on(self) -> bool:
        """Whether any span can come of it."""
        return self._recorder is not None

    def serve(
        self, name: str, carrier: Mapping[str, str], attributes: Attributes | None = None
    ) -> Span | None:
        """A server span for what has come in with these headers; None when it is not recorded."""
        if self._recorder is None:
            return None
        context = self._recorder.context_of_headers(carrier)
        return self._serve(name, context, attributes)

    def serve_round(
        self, name: str, traceparent: str, tracestate: str, attributes: Attributes | None = None
    ) -> Span | None:
        """The same for a round, which has its context in fields."""
        if self._recorder is None:
            return None
        context = self._recorder.context_of_round(traceparent, tracestate)
        return self._serve(name, context, attributes)

    def _serve(self, name: str, context: "Context", attributes: Attributes | None) -> Span | None:
        assert self._recorder is not None
        started_ns = time_ns()
        span = self._recorder.start(name, "server", attributes, context, started_ns)
        return Span(self._recorder, span, name, started_ns) if span.is_recording() else None

    async def aclose(self) -> None:
        """Send what is still to be sent, for as long as `recorder.FLUSH_S` at most."""
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.close)


NOT_TRACED = Tracer()


def start_tracing(service: str) -> Tracer:
    """The tracer of a process, `service` being its name unless a variable gives another one.

    Raises `InvalidConfig` when a variable has a value that cannot be used.
    """
    environment = library_environment("OTEL_")
    exporters = environment.get("OTEL_TRACES_EXPORTER", "").strip()
    is_disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    has_endpoint = any(environment.get(name) for name in _ENDPOINTS)
    if is_disabled or exporters.lower() == "none" or not (exporters or has_endpoint):
        return NOT_TRACED
    try:
        # Half a second of imports, for those who want spans.
        from paceline.telemetry.recorder import Recorder

        return Tracer(Recorder(service, exporters or "otlp", environment))
    except ValueError as error:
        raise InvalidConfig(f"a variable OTEL_… cannot be used: {error}") from error
