"""Spans as OpenTelemetry's SDK records and exports them. Loaded only where spans are wanted.

The SDK reads its variables itself: sampler, limits, batches, resource, endpoint, headers,
certificates. What it leaves to others is which exporter they name; that is done here. A thread of
the SDK exports, so a collector that is slow or gone holds up nobody. What it has no room for is
dropped, and that is said once in a while.
"""

import logging
import threading
from collections.abc import Mapping
from importlib.metadata import entry_points
from time import monotonic

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import (
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from paceline import __version__
from paceline.errors import InvalidConfig
from paceline.telemetry.names import SCHEMA_URL
from paceline.telemetry.span import Attributes, Kind

logger = logging.getLogger(__name__)

FLUSH_S = 3.0
"""Longest that the end of a process waits for a collector. With the time that answers have to end,
it must stay under the 30 seconds after which Kubernetes kills."""
SILENCE_S = 600.0
"""What the exporters complain about is logged so often at most."""

_KINDS = {
    "internal": SpanKind.INTERNAL,
    "client": SpanKind.CLIENT,
    "server": SpanKind.SERVER,
}
_PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
_PROTOCOL_KEYS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_EXPORTER_KEY = "OTEL_TRACES_EXPORTER"
_OF_HEADERS = "opentelemetry.util.re"
"""The logger that repeats what it cannot read of OTEL_EXPORTER_OTLP_HEADERS."""
_W3C = TraceContextTextMapPropagator()


class Recorder:
    """Starts spans and hands them to the exporters."""

    def __init__(self, service: str, exporters: str, environment: Mapping[str, str]) -> None:
        """`exporters` as OTEL_TRACES_EXPORTER names them, `environment` all of its variables."""
        logs = logging.getLogger("opentelemetry")
        logs.propagate = False
        logs.handlers = [_Complaints()]
        defaults = {
            "service.name": service,
            "service.namespace": "paceline",
            "service.version": __version__,
        }
        named = OTELResourceDetector().detect().attributes
        self._provider = TracerProvider(
            resource=Resource.create({**defaults, **named}), shutdown_on_exit=False
        )
        self._exporters = [
            _exporter(name.strip(), environment) for name in exporters.split(",") if name.strip()
        ]
        for exporter in self._exporters:
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("paceline", __version__, SCHEMA_URL)

    def start(
        self,
        name: str,
        kind: Kind,
        attributes: Attributes | None,
        context: Context,
        started_ns: int,
    ) -> Span:
        """A span below the one of the context; the sampler says whether it is recorded."""
        return self._tracer.start_span(
            name, context, _KINDS[kind], attributes, start_time=started_ns
        )

    def context_of(self, span: Span) -> Context:
        """What a child of the span begins with."""
        return set_span_in_context(span, Context())

    def context_of_headers(self, carrier: Mapping[str, str]) -> Context:
        """What came in from outside, as OTEL_PROPAGATORS has it."""
        return propagate.extract(carrier, Context())

    def context_of_round(self, traceparent: str, tracestate: str) -> Context:
        """What came in from another process of ours."""
        carrier = {"traceparent": traceparent, "tracestate": tracestate}
        return _W3C.extract(carrier, Context())

    def remote_span_context(self, traceparent: str) -> SpanContext:
        """The span that a `traceparent` names; an invalid one if it names none."""
        return get_current_span(self.context_of_round(traceparent, "")).get_span_context()

    def set_error(self, span: Span) -> None:
        """The span's status."""
        span.set_status(StatusCode.ERROR)

    def close(self) -> None:
        """Export what is left, for so long at most; what is still left then is dropped."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(FLUSH_S)
        if closing.is_alive():
            logger.warning("the last spans could not be exported within %g s", FLUSH_S)
            # They are ended twice by this, and would complain.
            logging.getLogger("opentelemetry").handlers = [logging.NullHandler()]
            for exporter in self._exporters:
                exporter.shutdown()


class _Complaints(logging.Handler):
    """What the SDK logs, from each of its loggers one line in a while."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._told: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Pass it on, unless the like has just been."""
        now = monotonic()
        if now - self._told.get(record.name, -SILENCE_S) < SILENCE_S:
            return
        self._told[record.name] = now
        # A header that is not of the form name=value is most likely a key all the same.
        message = str(record.msg) if record.name == _OF_HEADERS else record.getMessage()
        logger.warning(
            "%s. Requests are not affected; the like is not logged again for %g minutes",
            message.removesuffix(": %s").rstrip("."),
            SILENCE_S / 60,
        )


def _exporter(name: str, environment: Mapping[str, str]) -> SpanExporter:
    if name == "otlp":
        key = next((key for key in _PROTOCOL_KEYS if environment.get(key)), "")
        protocol = environment[key].strip() if key else "grpc"
        if protocol not in _PROTOCOLS:
            expected = " or ".join(_PROTOCOLS)
            raise InvalidConfig(f"{key} is {protocol!r}; expected {expected}")
        name = _PROTOCOLS[protocol]
    found = [*entry_points(group="opentelemetry_traces_exporter", name=name)]
    if not found:
        raise InvalidConfig(f"{_EXPORTER_KEY} is {name!r}; expected otlp, console or none")
    try:
        exporter: SpanExporter = found[0].load()()
    except Exception as error:  # exporters have errors of their own for variables
        raise InvalidConfig(f"a variable OTEL_… cannot be used: {error}") from error
    return exporter
