"""An OpenTelemetry collector in the test process: takes spans by gRPC and HTTP, and keeps them."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

KINDS = {1: "internal", 2: "server", 3: "client"}
ERROR = 2


@dataclass(frozen=True)
class Event:
    name: str
    attributes: dict[str, Any]


@dataclass(frozen=True, eq=False)
class CollectedSpan:
    """A span as a collector gets it."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    started_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    events: list[Event]
    links: list[str]
    """Span ids."""
    is_error: bool
    tracestate: str
    resource: dict[str, Any]


@dataclass
class SpanCollector:
    """A context manager; the servers end with it."""

    spans: list[CollectedSpan] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of each delivery."""
    raw: bytes = b""
    """Everything that was sent, as it was."""

    def __enter__(self) -> Self:
        self._grpc = grpc.server(ThreadPoolExecutor(4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Servicer(self), self._grpc)
        self.grpc_endpoint = f"http://127.0.0.1:{self._grpc.add_insecure_port('127.0.0.1:0')}"
        self._grpc.start()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
                collector.take(request, {**self.headers} | {"path": self.path})
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http_endpoint = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._grpc.stop(0).wait()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def take(
        self, request: trace_service_pb2.ExportTraceServiceRequest, headers: dict[str, str]
    ) -> None:
        """One delivery."""
        self.headers.append({key.lower(): value for key, value in headers.items()})
        self.raw += request.SerializeToString()
        self.spans += _spans_of(request)

    def named(self, name: str, kind: str | None = None) -> list[CollectedSpan]:
        """All of this name, in the order in which they began."""
        found = [s for s in self.spans if s.name == name and kind in (None, s.kind)]
        return sorted(found, key=lambda span: span.started_ns)

    def children(self, parent: CollectedSpan) -> list[CollectedSpan]:
        """Those right below a span, in the order in which they began."""
        found = [span for span in self.spans if span.parent_id == parent.span_id]
        return sorted(found, key=lambda span: span.started_ns)

    def tree(self, root: CollectedSpan, depth: int = 0) -> list[tuple[int, CollectedSpan]]:
        """A span and all below it, with their depths."""
        found = [(depth, root)]
        for child in self.children(root):
            found += self.tree(child, depth + 1)
        return found


class _Servicer(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, collector: SpanCollector) -> None:
        self._collector = collector

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        self._collector.take(request, dict(context.invocation_metadata()))
        return trace_service_pb2.ExportTraceServiceResponse()


def _spans_of(request: trace_service_pb2.ExportTraceServiceRequest) -> Iterator[CollectedSpan]:
    for resource_spans in request.resource_spans:
        resource = _values(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield _span(span, resource)


def _span(span: trace_pb2.Span, resource: dict[str, Any]) -> CollectedSpan:
    return CollectedSpan(
        service=resource["service.name"],
        name=span.name,
        kind=KINDS[span.kind],
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        started_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        events=[Event(event.name, _values(event.attributes)) for event in span.events],
        links=[link.span_id.hex() for link in span.links],
        is_error=span.status.code == ERROR,
        tracestate=span.trace_state,
        resource=resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {item.key: _value(item.value) for item in attributes if isinstance(item, KeyValue)}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
