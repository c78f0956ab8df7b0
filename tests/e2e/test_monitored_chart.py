"""A real Prometheus that scrapes real services as the chart's monitors say: every dashboard, rule,
alert and autoscaler finds there what it asks for.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml
from answers import Body, ask_all, drafts
from observed import soon
from processes import Stack
from prometheus_server import ManagedPrometheus, needs_prometheus
from queries import (
    DASHBOARDS,
    NOT_HERE,
    ROOT,
    is_broken,
    queries,
    rules,
    until_answered,
    without_limits,
)

from tests.chart.rendering import CHART, Manifests, needs_helm, render
from tests.chart.scrape_configs import pod_name, scrape_configs

pytestmark = [needs_prometheus, needs_helm, pytest.mark.timeout(300)]

SCALED = {"type": "keda", "minReplicas": 1}
VALUES: dict[str, Any] = {
    "monitoring": {name: {"enabled": True} for name in ("monitors", "rules")},
    "autoscaling": {"keda": {"serverAddress": "http://prometheus:9090"}},
    "defaults": {"autoscaling": SCALED},
    "drafts": {
        "default": {"autoscaling": {"minReplicas": 0}},
        "model": {"settings": {"drafter": "draft-model", "model": "table:7:0.2"}},
        "self": {"settings": {"drafter": "self"}},
    },
}
POOLS = {"suffix": "default", "draft-model": "model", "self": "self"}
"""Pools of the drafts by their drafters."""
BODIES: list[Body] = [
    {
        "prompt": f"{n % 3} to be or not to be, that is the question",
        "seed": n,
        "max_tokens": 60,
        "speculation": drafts(drafter, 4),
    }
    for n, drafter in enumerate(2 * [*POOLS])
]
CHOSEN = {"namespace": "demo", "pod": "paceline-.+", "model": ".+"}
ADAPTER = CHART / "files" / "prometheus-adapter.yaml"
GUIDE = ROOT / "docs" / "autoscaling.md"
TIERS = {
    "paceline_streams": ["coordinator"],
    "paceline_verify_wait_seconds": ["target"],
    "paceline_kv_usage": ["target"],
    "paceline_proposals_waiting": [f"draft-{pool}" for pool in POOLS.values()],
    "paceline_busy_share": [f"draft-{pool}" for pool in POOLS.values()],
}


@pytest.fixture(scope="module")
def manifests() -> Manifests:
    return render(VALUES)


@pytest.fixture(scope="module")
def prometheus(
    table_stack: Stack, manifests: Manifests, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ManagedPrometheus]:
    addresses = {
        "paceline-coordinator": [table_stack.coordinator.metrics_address],
        "paceline-target": [table_stack.target.metrics_address],
    }
    for drafter, pool in POOLS.items():
        addresses[f"paceline-draft-{pool}"] = [table_stack.drafts[drafter].metrics_address]
    files = []
    for rule in manifests.of_kind("PrometheusRule"):
        files.append(tmp_path_factory.mktemp("rules") / f"{rule['metadata']['name']}.yaml")
        files[-1].write_text(json.dumps(rule["spec"]))
    with ManagedPrometheus(scrape_configs(manifests, addresses), files) as prometheus:
        yield prometheus


@asynccontextmanager
async def in_use(stack: Stack) -> AsyncIterator[None]:
    """Rates want something that happens between two scrapes."""

    async def keep_using() -> None:
        while True:
            await ask_all(stack.coordinator, BODIES, concurrency=4)
            await asyncio.sleep(0.3)

    using = asyncio.create_task(keep_using())
    try:
        yield
    finally:
        using.cancel()
        await asyncio.wait((using,))


def of_scaled_objects(manifests: Manifests) -> dict[tuple[str, str], str]:
    """Queries by the names of object and trigger."""
    return {
        (item["metadata"]["name"], trigger["name"]): trigger["metadata"]["query"]
        for item in manifests.of_kind("ScaledObject")
        for trigger in item["spec"]["triggers"]
    }


def rules_of_the_adapter() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(ADAPTER.read_text())["rules"]["custom"]
    return found


def of_the_adapter(by: str, **labels: str) -> dict[str, str]:
    """As prometheus-adapter fills in its rules."""
    matchers = ",".join(f'{name}=~"{value}"' for name, value in labels.items())
    return {
        rule["name"]["as"]: rule["metricsQuery"]
        .replace("<<.GroupBy>>", by)
        .replace("<<.LabelMatchers>>", matchers)
        for rule in rules_of_the_adapter()
    }


def of_the_guide() -> list[str]:
    """With finer steps, so that there is one at once."""
    text = GUIDE.read_text().replace("[1d:1m]", "[1d:1s]")
    return re.findall(r"```promql\n(.+?)```", text, re.DOTALL)


async def test_every_query_finds_its_series_under_the_labels_that_monitors_give(
    table_stack: Stack, manifests: Manifests, prometheus: ManagedPrometheus
) -> None:
    asked = [query for path in DASHBOARDS for query in queries(path, CHOSEN)]
    asked += [rule["record"] for rule in rules() if "record" in rule]
    asked += [without_limits(rule["expr"]) for rule in rules() if "alert" in rule]
    asked = [one for one in asked if not is_broken(one) and NOT_HERE not in one]
    scalers = of_scaled_objects(manifests)
    pods = "|".join(pod_name(f"paceline-{tier}", 0) for tier in ("coordinator", "target"))
    pods += "|" + "|".join(pod_name(f"paceline-draft-{pool}", 0) for pool in POOLS.values())
    each = of_the_adapter("pod", namespace="demo", pod=pods)
    summed = of_the_adapter("", namespace="demo", job="paceline-.+")
    asked += [rule["seriesQuery"] for rule in rules_of_the_adapter()]
    guide = of_the_guide()
    assert len(asked) > 60 and len(scalers) == 10 and len(guide) == 4
    async with in_use(table_stack):
        await until_answered(
            prometheus, [*asked, *scalers.values(), *each.values(), *summed.values(), *guide]
        )
        for query in scalers.values():
            (series,) = prometheus.query(query)
            assert series["metric"] == {}
        for name, tiers in TIERS.items():
            found = {series["metric"]["pod"] for series in prometheus.query(each[name])}
            assert found == {pod_name(f"paceline-{tier}", 0) for tier in tiers}, name
            assert len(prometheus.query(summed[name])) == 1
    assert prometheus.query('ALERTS{alertstate="firing"}') == []


async def test_targets_are_called_after_their_workloads_and_metrics_keep_their_own_labels(
    prometheus: ManagedPrometheus, manifests: Manifests
) -> None:
    monitors = manifests.names("ServiceMonitor") | manifests.names("PodMonitor")

    async def is_scraped() -> bool:
        return len(prometheus.query("up == 1")) == len(monitors)

    await soon(is_scraped, "all are scraped")
    found = {series["metric"]["job"]: series["metric"] for series in prometheus.query("up")}
    assert set(found) == monitors
    for job, labels in found.items():
        assert labels["namespace"] == "demo"
        assert labels["pod"] == pod_name(job, 0)
        assert labels.get("pool", "") == job.partition("-draft-")[2]
    for series in prometheus.query('{__name__=~"paceline_.+"}'):
        aside = [label for label in series["metric"] if label.startswith("exported_")]
        assert aside == [], series["metric"]
    services = {one["metric"]["service"] for one in prometheus.query("paceline_build_info")}
    assert services == {"coordinator", "target", "draft"}


async def test_alerts_say_what_their_summaries_name(
    table_stack: Stack, prometheus: ManagedPrometheus
) -> None:
    alerts = [rule for rule in rules() if "alert" in rule and not is_broken(rule["expr"])]
    async with in_use(table_stack):
        await until_answered(prometheus, [without_limits(rule["expr"]) for rule in alerts])
        for rule in alerts:
            named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
            for series in prometheus.query(without_limits(rule["expr"])):
                assert named <= set(series["metric"]), rule["alert"]


async def test_a_signal_follows_the_load(
    table_stack: Stack, manifests: Manifests, prometheus: ManagedPrometheus
) -> None:
    scalers = of_scaled_objects(manifests)
    rises = {
        "streams": scalers["paceline-coordinator", "paceline-streams"],
        "busy": scalers["paceline-draft-model", "paceline-busy-share"],
        "anything": scalers["paceline-draft-default", "something-to-answer"],
    }
    async with in_use(table_stack):
        await until_answered(prometheus, [f"{query} > 0" for query in rises.values()])
        (anything,) = prometheus.query(rises["anything"])
        assert 0 < float(anything["value"][1]) <= 1
