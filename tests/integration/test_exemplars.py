"""From a time in `/metrics` to the trace of a request that took it."""

import httpx
import pytest
from coordinator_server import message, parts_of
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from scripted_generator import served
from traced_cluster import traced

OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}


@pytest.mark.parametrize(("sampler", "is_recorded"), [("always_on", True), ("always_off", False)])
async def test_the_times_of_a_recorded_request_name_its_trace(
    sampler: str, is_recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with traced(monkeypatch, TRACES_SAMPLER=sampler) as service:
        await parts_of(service.stub.Generate(message()))
        running = service.running
        async with served(running.generator, running.metrics) as url, httpx.AsyncClient() as client:
            rich = (await client.get(f"{url}/metrics", headers=OPENMETRICS)).text
            plain = (await client.get(f"{url}/metrics")).text
        spans = await service.spans()
    found = {
        family.name.removeprefix("paceline_"): sample.exemplar.labels["trace_id"]
        for family in text_string_to_metric_families(rich)
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert "trace_id" not in plain, "the text format has no exemplars"
    if is_recorded:
        (trace_id,) = {span.trace_id for span in spans.spans}
        assert set(found.values()) == {trace_id}
        assert {"time_to_first_token_seconds", "e2e_request_latency_seconds"} <= set(found)
    else:
        assert found == {}
