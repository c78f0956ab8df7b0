"""When spans are recorded, what the variables of OpenTelemetry do, and how exporting ends."""

import logging
import os
import subprocess
import sys

import pytest
from span_collector import SpanCollector

from paceline import __version__
from paceline.errors import InvalidConfig
from paceline.telemetry import recorder
from paceline.telemetry.span import current_child, enter_span
from paceline.telemetry.tracer import NOT_TRACED, start_tracing

LOADS_NOTHING = """
import sys
import coordinator.servicer, paceline.logs, paceline.server, paceline.telemetry.round_spans
from paceline.telemetry.tracer import NOT_TRACED, start_tracing
assert start_tracing("service") is NOT_TRACED
assert NOT_TRACED.serve("chat", {}) is None
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in [key for key in os.environ if key.startswith("OTEL_")]:
        monkeypatch.delenv(key)


def set_variables(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    for key, value in values.items():
        monkeypatch.setenv(f"OTEL_{key}", value)


def test_without_an_endpoint_nothing_of_opentelemetry_is_loaded() -> None:
    subprocess.run([sys.executable, "-c", LOADS_NOTHING], check=True)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "SDK_DISABLED": "true"},
        {"EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "TRACES_EXPORTER": "none"},
        {"SERVICE_NAME": "x", "TRACES_SAMPLER": "always_on"},
    ],
)
def test_nothing_is_traced(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, **variables)
    assert start_tracing("service") is NOT_TRACED


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
async def test_spans_arrive_by_either_protocol_before_the_process_ends(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SpanCollector() as collector:
        endpoint = collector.grpc_endpoint if protocol == "grpc" else collector.http_endpoint
        set_variables(
            monkeypatch,
            EXPORTER_OTLP_ENDPOINT=endpoint,
            EXPORTER_OTLP_PROTOCOL=protocol,
            EXPORTER_OTLP_HEADERS="x-tenant=us",
            RESOURCE_ATTRIBUTES="k8s.pod.name=pod-1,service.namespace=ours",
        )
        tracer = start_tracing("paceline-test")
        span = tracer.serve("chat", {})
        assert span is not None
        span.child("paceline.queue", started_ns=5).end(9)
        span.end()
        await tracer.aclose()
        child, root = sorted(collector.spans, key=lambda span: span.started_ns)
        assert (child.name, child.started_ns, child.ended_ns) == ("paceline.queue", 5, 9)
        assert (child.parent_id, child.trace_id) == (root.span_id, root.trace_id)
        assert collector.headers[0]["x-tenant"] == "us"
        assert root.resource["service.name"] == "paceline-test"
        assert root.resource["service.namespace"] == "ours"
        assert root.resource["service.version"] == __version__
        assert root.resource["service.instance.id"]
        assert root.resource["k8s.pod.name"] == "pod-1"


def test_a_variable_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    with SpanCollector() as collector:
        set_variables(
            monkeypatch,
            EXPORTER_OTLP_TRACES_ENDPOINT=collector.grpc_endpoint,
            SERVICE_NAME="mine",
        )
        spans = recorder.Recorder("paceline-test", "otlp", dict(os.environ))
        spans.start("chat", "server", None, spans.context_of_headers({}), 1).end()
        spans.close()
        assert [span.service for span in collector.spans] == ["mine"]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"TRACES_EXPORTER": "zipkni"}, "OTEL_TRACES_EXPORTER is 'zipkni'; expected otlp"),
        (
            {"TRACES_EXPORTER": "otlp", "EXPORTER_OTLP_PROTOCOL": "http/json"},
            "OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json'; expected grpc or http/protobuf",
        ),
        (
            {"TRACES_EXPORTER": "otlp", "BSP_MAX_QUEUE_SIZE": "10"},
            "a variable OTEL_… cannot be used: max_export_batch_size must be",
        ),
        (
            {"TRACES_EXPORTER": "otlp", "EXPORTER_OTLP_COMPRESSION": "zip"},
            "a variable OTEL_… cannot be used: .*zip.* OTEL_EXPORTER_OTLP_COMPRESSION",
        ),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_variables(monkeypatch, **variables)
    with pytest.raises(InvalidConfig, match=message):
        start_tracing("service")


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
async def test_a_header_that_cannot_be_read_is_not_repeated(
    protocol: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    set_variables(
        monkeypatch,
        EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1",
        EXPORTER_OTLP_PROTOCOL=protocol,
        EXPORTER_OTLP_HEADERS="authorization: Bearer sk-secret",
    )
    await start_tracing("service").aclose()
    assert "Header format invalid!" in caplog.text
    assert "sk-secret" not in caplog.text


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
async def test_a_collector_that_is_gone_is_told_once_and_delays_the_end_a_little(
    protocol: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "FLUSH_S", 0.2)
    set_variables(
        monkeypatch,
        EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1",
        EXPORTER_OTLP_PROTOCOL=protocol,
        BSP_MAX_EXPORT_BATCH_SIZE="1",
    )
    tracer = start_tracing("service")
    for _ in range(5):
        span = tracer.serve("chat", {})
        assert span is not None
        span.end()
    await tracer.aclose()
    said = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    # A tracer that another test has closed may still be talking: the SDK's loggers are all tests'.
    said = [line for line in said if "already shutdown" not in line]
    assert len([line for line in said if "Requests are not affected" in line]) == 1
    assert said[-1] == "the last spans could not be exported within 0.2 s"
    assert len(said) == 2


async def test_what_runs_in_a_request_comes_below_it_and_says_how_it_ended() -> None:
    with SpanCollector() as collector, pytest.MonkeyPatch.context() as patch:
        set_variables(patch, EXPORTER_OTLP_ENDPOINT=collector.grpc_endpoint)
        tracer = start_tracing("service")
        with current_child("nobody asks"):
            pass
        root = tracer.serve("chat", {})
        enter_span(root)
        with current_child("well"):
            pass
        with pytest.raises(KeyError), current_child("badly"):
            raise KeyError("a value that nobody may see")
        enter_span(None)
        assert root is not None
        root.end()
        await tracer.aclose()
        [parent] = collector.named("chat")
        well, badly = collector.children(parent)
        assert (well.name, well.is_error) == ("well", False)
        assert (badly.attributes, badly.is_error) == ({"error.type": "KeyError"}, True)
        assert b"nobody may see" not in collector.raw
        assert len(collector.spans) == 3
