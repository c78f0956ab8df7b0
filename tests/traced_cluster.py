"""A cluster in this process whose requests and rounds are recorded, and the spans of it."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from coordinator_server import CoordinatorServer
from span_collector import CollectedSpan, SpanCollector
from worker_servers import Cluster, cluster, draft_server, target_server

from paceline.channel import open_channel
from paceline.telemetry.names import ATTRIBUTES, EVENTS, SPANS
from paceline.telemetry.tracer import Tracer, start_tracing
from paceline.v1.coordinator_pb2_grpc import CoordinatorServiceStub


@dataclass
class Traced:
    """What runs, and where its spans go."""

    running: Cluster
    stub: Any
    """Of the coordinator's service."""
    tracer: Tracer
    """The coordinator's."""
    _collector: SpanCollector
    _tracers: list[Tracer]

    async def spans(self) -> SpanCollector:
        """All that was recorded, when nothing more is to be."""
        await self.running.until_free()
        for tracer in self._tracers:
            await tracer.aclose()
        for span in self._collector.spans:
            check_documented(span)
        return self._collector


@asynccontextmanager
async def traced(
    monkeypatch: pytest.MonkeyPatch,
    num_targets: int = 1,
    target: Callable[..., Any] = target_server,
    draft: str = "suffix",
    **environment: str,
) -> AsyncIterator[Traced]:
    """Targets, a draft and a coordinator with its gRPC service."""
    for key in [key for key in os.environ if key.startswith("OTEL_")]:
        monkeypatch.delenv(key)
    with SpanCollector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.grpc_endpoint)
        for key, value in environment.items():
            monkeypatch.setenv(f"OTEL_{key}", value)
        roles = ("coordinator", "target", "draft")
        tracers = [start_tracing(f"paceline-{role}") for role in roles]
        targets = [target(tracer=tracers[1]) for _ in range(num_targets)]
        async with cluster(targets, [draft_server(draft, tracer=tracers[2])]) as running:
            await running.until_ready()
            server = CoordinatorServer(running, tracers[0])
            await server.start()
            try:
                async with open_channel(server.address) as channel:
                    stub = CoordinatorServiceStub(channel)
                    yield Traced(running, stub, tracers[0], collector, tracers)
            finally:
                await server.kill()


def check_documented(span: CollectedSpan) -> None:
    """Whether the tables have everything that it says."""
    found = [
        doc
        for doc in SPANS
        if doc.kind == span.kind
        and any(
            span.name.startswith(name.removesuffix(" <model>")) for name in doc.name.split(", ")
        )
    ]
    assert len(found) == 1, span
    assert found[0].service == "coordinator" or span.service != "paceline-coordinator"
    assert set(span.attributes) <= set(found[0].attributes), span.name
    assert set(span.attributes) <= set(ATTRIBUTES)
    events = {doc.name: set(doc.attributes) for doc in EVENTS}
    for event in span.events:
        assert set(event.attributes) <= events[event.name], event


def total(spans: list[CollectedSpan], attribute: str) -> int:
    """The sum over spans that have it."""
    return sum(span.attributes.get(attribute, 0) for span in spans)
