"""One request through four processes: its spans, its counts, its logs, and what is in none of them.

The collector is in this process, and so is the client, with a span of its own.
"""

import asyncio
import json
import os
from pathlib import Path

import httpx
import pytest
from observed import metrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import inject
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from processes import Processes
from span_collector import SpanCollector
from traced_cluster import check_documented, total
from waiting import SOON_S

from paceline.telemetry.names import PREFILL, ROUND

CANARY = "canary bird of many colours "
KEY = "sk-canary-key"


def client_of(collector: SpanCollector) -> TracerProvider:
    client = TracerProvider(resource=Resource.create({"service.name": "client"}))
    exporter = OTLPSpanExporter(f"{collector.http_endpoint}/v1/traces")
    client.add_span_processor(SimpleSpanProcessor(exporter))
    return client


def test_one_request_is_one_tree_over_four_processes_and_says_nothing_of_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in [key for key in os.environ if key.startswith("OTEL_")]:
        monkeypatch.delenv(key)
    quiet = {"log_level": "debug", "log_format": "json"}
    with SpanCollector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.http_endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        with Processes(tmp_path, 1) as processes:
            target = processes.target(model="table:7", **quiet)
            draft = processes.draft("suffix", **quiet)
            stack = processes.stack(target, {"suffix": draft}, **quiet)
            client = client_of(collector)
            headers = {"authorization": f"Bearer {KEY}", "x-request-id": "ours"}
            with client.get_tracer("client").start_as_current_span("ask"):
                inject(headers)
                answer = httpx.post(
                    f"{stack.coordinator.url}/v1/completions",
                    json={
                        "prompt": CANARY * 4,
                        "max_tokens": 60,
                        "temperature": 0,
                        "ignore_eos": True,
                    },
                    headers=headers,
                    trust_env=False,
                    timeout=SOON_S,
                ).raise_for_status()
            bad = {"model": "table:7", "prompt": CANARY, "temperature": -1}
            url = f"{stack.coordinator.url}/v1/completions"
            refused = httpx.post(url, json=bad, headers=headers, trust_env=False, timeout=SOON_S)
            counted = asyncio.run(metrics(stack.coordinator))
            for process in (stack.coordinator, draft, target):
                process.stop()
            client.shutdown()
        spans = {span.span_id: span for span in collector.spans}
        [root] = collector.named("ask")
        served = collector.named("text_completion table:7")[0]
        tree = collector.tree(root)
        assert {span.service for _, span in tree} == {
            "client",
            *(f"paceline-{role}" for role in ("coordinator", "draft", "target")),
        }
        assert served.parent_id == root.span_id
        assert {span.parent_id for span in collector.spans} <= {"", *spans}, "none is lost"
        for span in collector.spans:
            if span.service != "client":
                check_documented(span)

        rounds = [*collector.named(PREFILL), *collector.named(ROUND)]
        for said in (rounds, [served]):
            assert total(said, "paceline.spec.rounds") == counted["spec_decode_num_drafts_total"]
            for name, metric in (("drafted", "draft_tokens"), ("accepted", "accepted_tokens")):
                expected = counted[f"spec_decode_num_{metric}_total"]
                assert total(said, f"paceline.spec.{name}") == expected
        assert total(rounds, "paceline.round.passes") == counted["target_passes_total"]
        assert served.attributes["gen_ai.usage.output_tokens"] == 60
        assert served.attributes["http.response.status_code"] == 200
        assert served.attributes["paceline.request.id"] == answer.headers["x-request-id"] == "ours"
        [wrong] = collector.named("text_completion")
        assert refused.status_code == 400
        assert (wrong.attributes["http.response.status_code"], wrong.is_error) == (400, False)

        logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
        lines = [json.loads(line) for line in logs.splitlines()]
        [done] = [line for line in lines if line["event"].startswith("POST /v1/completions: 200")]
        assert (done["request_id"], done["trace_id"]) == ("ours", served.trace_id)
        text = answer.json()["choices"][0]["text"]
        for secret in (CANARY.strip(), KEY, text[:20], json.dumps(text[:20])[1:-1]):
            assert secret not in logs
            assert secret.encode() not in collector.raw
