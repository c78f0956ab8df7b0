"""What every process counts with: names, labels, formats and the port that shows them."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from plain_http import plain_client
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from scraping import scraped

from paceline.errors import InvalidConfig
from paceline.metrics import REQUEST_BUCKETS, Few, Instruments, MetricsServer

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
async def server() -> AsyncIterator[tuple[Instruments, MetricsServer]]:
    instruments = Instruments()
    server = MetricsServer(instruments, "127.0.0.1", 0)
    yield instruments, server
    await server.stop()


async def test_a_port_of_its_own_shows_both_formats(
    server: tuple[Instruments, MetricsServer],
) -> None:
    instruments, metrics_server = server
    requests = instruments.histogram("request_seconds", "How long.", REQUEST_BUCKETS)
    requests.observe(0.3, {"trace_id": "a" * 32})
    async with plain_client() as client:
        text = await client.get(metrics_server.url)
        rich = await client.get(metrics_server.url, headers={"accept": OPENMETRICS})
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert rich.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert "trace_id" not in text.text
    assert list(text_string_to_metric_families(text.text))
    exemplars = [
        (sample.labels["le"], sample.exemplar.labels, sample.exemplar.value)
        for family in openmetrics.text_string_to_metric_families(rich.text)
        for sample in family.samples
        if sample.exemplar is not None
    ]
    assert exemplars == [("0.32", {"trace_id": "a" * 32}, 0.3)]


async def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidConfig, match=f"metrics_port: cannot listen on 127.0.0.1:{port}"):
            MetricsServer(Instruments(), "127.0.0.1", port)


async def test_a_blocked_event_loop_is_late(server: tuple[Instruments, MetricsServer]) -> None:
    instruments, _ = server

    def num_late() -> float:
        found = instruments.registry.get_sample_value
        count = found("paceline_event_loop_lag_seconds_count") or 0.0
        return count - (found("paceline_event_loop_lag_seconds_bucket", {"le": "0.1"}) or 0.0)

    while not num_late():
        blocked_until = asyncio.get_running_loop().time() + 0.6
        while asyncio.get_running_loop().time() < blocked_until:
            pass
        await asyncio.sleep(0.01)


def test_what_is_kept_elsewhere_is_read_when_it_is_fetched() -> None:
    instruments = Instruments()
    kept = {("a",): 1.0}
    instruments.shown_counter("things", "Things.", ("kind",), lambda: kept)
    instruments.shown_gauge("room_tokens", "Room.", (), lambda: {(): 7.0})
    kept[("a",)] += 1
    found = scraped(instruments)
    assert (found["things_total{kind=a}"], found["room_tokens"]) == (2, 7)
    assert [name for name in found if "_created" in name] == []


def test_labels_stay_few_whatever_comes() -> None:
    few = Few(limit=2)
    assert [few(value) for value in ("a", "b", "c", "a", "d")] == ["a", "b", "other", "a", "other"]


def test_instruments_describe_themselves_with_their_units() -> None:
    instruments = Instruments()
    instruments.counter("prompt_tokens", "Tokens.")
    instruments.gauge("kv_cache_usage_perc", "Share.", "role")
    instruments.counter("requests", "Requests.")
    lag, *others = instruments.described
    assert (lag.name, lag.kind, lag.unit) == (
        "paceline_event_loop_lag_seconds",
        "histogram",
        "seconds",
    )
    assert [(one.name, one.kind, one.labels, one.unit) for one in others] == [
        ("paceline_prompt_tokens_total", "counter", (), "tokens"),
        ("paceline_kv_cache_usage_perc", "gauge", ("role",), "ratio"),
        ("paceline_requests_total", "counter", (), ""),
    ]
