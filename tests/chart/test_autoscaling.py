"""Each tier is scaled by its own signal, by one autoscaler, quickly up and slowly down."""

import re
from typing import Any

import pytest
import yaml
from instruments import all_instruments

from tests.chart.kubernetes_schemas import VERSIONS, faults_of
from tests.chart.rendering import CHART, Manifests, Object, Refused, needs_helm, render

pytestmark = needs_helm

Values = dict[str, Any]
ADAPTER = CHART / "files" / "prometheus-adapter.yaml"
SERVER = "http://prometheus.monitoring:9090"
SIGNALS = {
    "coordinator": {"paceline_streams": "48"},
    "target": {"paceline_verify_wait_seconds": "0.05", "paceline_kv_usage": "0.7"},
    "draft-default": {"paceline_proposals_waiting": "2", "paceline_busy_share": "0.7"},
}
HPA, KEDA = "HorizontalPodAutoscaler", "ScaledObject"


def scaled(kind: str, more: Values | None = None) -> Manifests:
    """All tiers with one kind of autoscaler."""
    scaling = {"type": kind, **(more or {})}
    return render(
        {
            "defaults": {"autoscaling": scaling},
            "autoscaling": {"keda": {"serverAddress": SERVER}},
        }
    )


def rules() -> dict[str, str]:
    """Queries of the adapter by the names of their metrics."""
    found = yaml.safe_load(ADAPTER.read_text())["rules"]
    assert found["custom"] == found["external"]
    return {rule["name"]["as"]: rule["metricsQuery"] for rule in found["custom"]}


def queries(item: Object) -> dict[str, str]:
    return {
        trigger["name"].replace("-", "_"): trigger["metadata"]["query"]
        for trigger in item["spec"]["triggers"]
    }


def test_without_autoscaling_the_values_say_how_many_pods_there_are() -> None:
    manifests = render({"target": {"replicas": 3}})
    assert manifests.of_kind(HPA, KEDA) == []
    assert manifests.one("Deployment", "paceline-target")["spec"]["replicas"] == 3


@pytest.mark.parametrize("kind, rendered, other", [("hpa", HPA, KEDA), ("keda", KEDA, HPA)])
def test_what_scales_a_workload_alone_says_how_many_pods_there_are(
    kind: str, rendered: str, other: str
) -> None:
    manifests = scaled(kind)
    assert manifests.names(rendered) == {f"paceline-{name}" for name in SIGNALS}
    assert manifests.of_kind(other) == []
    for item in manifests.of_kind(rendered):
        target = item["spec"]["scaleTargetRef"]
        workload = manifests.one(target["kind"], target["name"])
        assert workload["apiVersion"] == target["apiVersion"]
        assert "replicas" not in workload["spec"]
    assert manifests.one("Deployment", "paceline-redis")["spec"]["replicas"] == 1


@pytest.mark.parametrize("kind", ["hpa", "keda"])
def test_autoscalers_are_admitted(kind: str) -> None:
    for item in scaled(kind).of_kind(HPA, KEDA):
        assert [fault for version in VERSIONS for fault in faults_of(item, version)] == []


@pytest.mark.parametrize("name", SIGNALS)
def test_a_horizontal_pod_autoscaler_asks_for_its_tiers_signals_of_each_pod(name: str) -> None:
    item = scaled("hpa").one(HPA, f"paceline-{name}")
    found = {
        metric["pods"]["metric"]["name"]: metric["pods"]["target"]
        for metric in item["spec"]["metrics"]
    }
    wanted = {"type": "AverageValue"}
    assert found == {
        name: {**wanted, "averageValue": value} for name, value in SIGNALS[name].items()
    }
    assert set(found) <= set(rules())


def test_an_external_metric_is_that_of_the_workloads_own_series() -> None:
    values: Values = {
        "autoscaling": {"hpa": {"metricType": "External"}},
        "target": {"autoscaling": {"type": "hpa"}},
        "drafts": {"default": {"autoscaling": {"type": "hpa", "seriesLabels": {"app": "mine"}}}},
    }
    for name, labels in (
        ("target", {"job": "paceline-target"}),
        ("draft-default", {"app": "mine"}),
    ):
        item = render(values).one(HPA, f"paceline-{name}")
        metrics = [metric["external"]["metric"] for metric in item["spec"]["metrics"]]
        assert {metric["name"] for metric in metrics} == set(SIGNALS[name])
        assert all(metric["selector"] == {"matchLabels": labels} for metric in metrics)
        assert faults_of(item, VERSIONS[-1]) == []


@pytest.mark.parametrize("name", SIGNALS)
def test_keda_asks_prometheus_what_the_adapter_would(name: str) -> None:
    item = scaled("keda").one(KEDA, f"paceline-{name}")
    assert set(queries(item)) == set(SIGNALS[name])
    matchers = f'namespace="demo",job="paceline-{name}"'
    for trigger in item["spec"]["triggers"]:
        rule = trigger["name"].replace("-", "_")
        query = rules()[rule].replace("<<.LabelMatchers>>", matchers).replace("<<.GroupBy>>", "")
        assert trigger["metadata"] == {
            "serverAddress": SERVER,
            "threshold": SIGNALS[name][rule],
            "ignoreNullValues": "false",
            "query": query,
        }


def test_keda_shows_prometheus_who_it_is() -> None:
    reference = {"name": "prometheus", "kind": "ClusterTriggerAuthentication"}
    keda = {"serverAddress": SERVER, "authModes": "bearer", "authenticationRef": reference}
    values = {"autoscaling": {"keda": keda}, "target": {"autoscaling": {"type": "keda"}}}
    item = render(values).one(KEDA, "paceline-target")
    assert faults_of(item, VERSIONS[-1]) == []
    for trigger in item["spec"]["triggers"]:
        assert trigger["authenticationRef"] == reference
        assert trigger["metadata"]["authModes"] == "bearer"


def test_a_pool_without_pods_gets_its_first_one_when_there_is_something_to_answer() -> None:
    values = {
        "autoscaling": {"keda": {"serverAddress": SERVER}},
        "drafts": {"default": {"autoscaling": {"type": "keda", "minReplicas": 0}}},
    }
    item = render(values).one(KEDA, "paceline-draft-default")
    assert item["spec"]["minReplicaCount"] == 0
    assert faults_of(item, VERSIONS[-1]) == []
    *own, first = item["spec"]["triggers"]
    assert {trigger["metadata"]["ignoreNullValues"] for trigger in own} == {"true"}
    assert (first["metadata"]["threshold"], first["metadata"]["ignoreNullValues"]) == ("1", "false")
    assert 'job="paceline-coordinator"' in first["metadata"]["query"]
    assert first["metadata"]["query"].startswith("clamp_max(")


@pytest.mark.parametrize(
    "drain, window, period", [(5, 300, 60), (900, 910, 910), (7200, 3600, 1800)]
)
def test_pods_go_one_at_a_time_when_the_one_before_has_ended(
    drain: int, window: int, period: int
) -> None:
    values: Values = {"target": {"drainSeconds": drain, "autoscaling": {"type": "hpa"}}}
    item = render(values).one(HPA, "paceline-target")
    down = item["spec"]["behavior"]["scaleDown"]
    assert down["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": period}]
    assert down["stabilizationWindowSeconds"] == window
    assert faults_of(item, VERSIONS[-1]) == []


def test_the_values_of_a_block_win() -> None:
    cpu = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
    }
    scaling = {
        "type": "hpa",
        "minReplicas": 2,
        "maxReplicas": 9,
        "targets": {"kvUsage": 0, "verifyWaitSeconds": 0.125},
        "extraMetrics": [cpu],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 900}},
    }
    spec = render({"target": {"autoscaling": scaling}}).one(HPA, "paceline-target")["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 9)
    wait, more = spec["metrics"]
    assert wait["pods"]["target"]["averageValue"] == "0.125"
    assert more == cpu
    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 900
    assert spec["behavior"]["scaleDown"]["policies"]
    assert spec["behavior"]["scaleUp"]["policies"]


def test_groups_of_ranks_are_scaled_as_groups() -> None:
    values: Values = {"target": {"autoscaling": {"type": "hpa"}, "groupKind": "LeaderWorkerSet"}}
    manifests = render(values, files=(CHART / "ci" / "ranks-values.yaml",))
    target = manifests.one(HPA, "paceline-target")["spec"]["scaleTargetRef"]
    assert target["kind"] == "LeaderWorkerSet"
    assert "replicas" not in manifests.one("LeaderWorkerSet", target["name"])["spec"]


@pytest.mark.parametrize(
    "values, said",
    [
        (
            {"target": {"autoscaling": {"type": "keda"}}},
            "autoscaling.keda.serverAddress is required, since target.autoscaling.type is keda",
        ),
        (
            {"drafts": {"default": {"autoscaling": {"type": "hpa", "minReplicas": 0}}}},
            "drafts.default.autoscaling.minReplicas is 0, which only drafts may have, with type",
        ),
        (
            {"coordinator": {"autoscaling": {"type": "hpa", "minReplicas": 5}}},
            "coordinator.autoscaling.maxReplicas is 4; expected at least minReplicas, 5",
        ),
        (
            {"coordinator": {"autoscaling": {"targets": {"kvUsage": 0.5}}}},
            "coordinator.autoscaling.targets.kvUsage is set, and a coordinator is scaled by stream",
        ),
        (
            {"coordinator": {"autoscaling": {"type": "hpa", "targets": {"streams": 0}}}},
            "coordinator.autoscaling.type is hpa, and all targets are 0",
        ),
        (
            {"redis": {"autoscaling": {"type": "hpa"}}},
            "redis.autoscaling.type is hpa, but this Redis is a single pod",
        ),
        (
            {"target": {"autoscaling": {"type": "hpa", "extraMetrics": [{"metadata": {}}]}}},
            "target.autoscaling.extraMetrics[0] is a trigger of KEDA, and type is hpa",
        ),
        (
            {"target": {"tensorParallelSize": 2, "autoscaling": {"type": "hpa"}}},
            "groups that are StatefulSets cannot be scaled",
        ),
        ({"target": {"autoscaling": {"type": "both"}}}, "/target/autoscaling/type"),
        ({"target": {"autoscaling": {"targets": {"kvUsage": 70}}}}, "/target/autoscaling/targets"),
    ],
)
def test_what_cannot_be_scaled_so_is_refused_by_name(values: Values, said: str) -> None:
    with pytest.raises(Refused) as refused:
        render(values)
    assert said in str(refused.value)


def test_every_signal_is_made_of_metrics_that_exist() -> None:
    known: set[str] = set()
    for one in all_instruments():
        suffixes = ("_bucket", "_sum", "_count") if one.kind == "histogram" else ("",)
        known |= {one.name + suffix for suffix in suffixes}
    found = yaml.safe_load(ADAPTER.read_text())["rules"]["custom"]
    for rule in found:
        named = re.findall(r"\bpaceline_\w+", rule["seriesQuery"] + rule["metricsQuery"])
        assert set(named) <= known, rule["name"]
    assert {rule["name"]["as"] for rule in found} == {
        name for signals in SIGNALS.values() for name in signals
    }


def test_the_guide_names_every_target_with_its_default() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    lines = (CHART.parent / "docs" / "autoscaling.md").read_text().splitlines()
    for key, default in values["defaults"]["autoscaling"]["targets"].items():
        (row,) = [line for line in lines if line.startswith("|") and f"| `{key}` |" in line]
        assert re.search(rf"\| {re.escape(str(default))}\b[^|]*\|$", row), row
