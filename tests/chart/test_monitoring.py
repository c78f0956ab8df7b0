"""What Prometheus and Grafana get of the chart, and when: who is scraped, rules, dashboards."""

import json
import re
from typing import Any

import pytest
import yaml

from tests.chart.kubernetes_schemas import VERSIONS, faults_of
from tests.chart.rendering import CHART, Manifests, Refused, needs_helm, render
from tests.chart.scrape_configs import endpoint_of

pytestmark = needs_helm

OPERATOR = "monitoring.coreos.com/v1"
MADE = ("ServiceMonitor", "PodMonitor", "PrometheusRule", "ConfigMap")
WORKERS = {"paceline-target", "paceline-draft-default", "paceline-draft-other"}
RULES = sorted((CHART / "rules").glob("*.yaml"))
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))


def monitored(values: dict[str, Any] | None = None) -> Manifests:
    """With two pools of drafts, where the Prometheus Operator is."""
    return render({"drafts": {"other": {}}, **(values or {})}, api_versions=(OPERATOR,))


def made(manifests: Manifests) -> set[str]:
    """Kinds of the objects for Prometheus and Grafana; the hook of `helm test` has a ConfigMap."""
    return {
        item["kind"] for item in manifests.of_kind(*MADE) if "smoke" not in item["metadata"]["name"]
    }


def switched(to: bool) -> dict[str, Any]:
    parts = ("monitors", "rules", "dashboards")
    return {"monitoring": {part: {"enabled": to} for part in parts}}


def test_objects_of_the_prometheus_operator_are_made_where_it_is_or_as_the_values_say() -> None:
    assert made(render()) == set()
    assert made(render(api_versions=(OPERATOR,))) == set(MADE)
    assert made(render(switched(to=False), api_versions=(OPERATOR,))) == set()
    assert made(render(switched(to=True))) == set(MADE)
    only = {"monitoring": {"dashboards": {"enabled": True}}}
    assert made(render(only)) == {"ConfigMap"}


def test_the_prometheus_operator_admits_its_objects() -> None:
    for item in monitored().of_kind(*MADE):
        assert faults_of(item, VERSIONS[-1]) == []


def test_every_pod_of_ours_is_scraped_by_exactly_one_monitor_on_a_port_that_it_has() -> None:
    manifests = monitored()
    services = {item["metadata"]["name"]: item for item in manifests.of_kind("Service")}
    found = {}
    for monitor in manifests.of_kind("PodMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"].items()
        (name,) = [
            name for name, pod in manifests.pods() if selector <= pod["metadata"]["labels"].items()
        ]
        found[name] = endpoint_of(monitor)["port"]
    (monitor,) = manifests.of_kind("ServiceMonitor")
    selector = monitor["spec"]["selector"]["matchLabels"].items()
    (name,) = [
        name for name, item in services.items() if selector <= item["metadata"]["labels"].items()
    ]
    assert endpoint_of(monitor)["port"] in {
        port["name"] for port in services[name]["spec"]["ports"]
    }
    found[name] = endpoint_of(monitor)["port"]
    assert found == {**dict.fromkeys(WORKERS, "metrics"), "paceline-coordinator": "http"}
    for name, pod in manifests.pods():
        if name in WORKERS:
            ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
            assert found[name] in ports


def test_prometheus_may_reach_the_ports_that_the_monitors_name() -> None:
    manifests = monitored()
    for monitor in manifests.of_kind("ServiceMonitor", "PodMonitor"):
        policy = manifests.one("NetworkPolicy", monitor["metadata"]["name"])["spec"]
        prometheus = {"app.kubernetes.io/name": "prometheus"}
        ports = [
            port["port"]
            for rule in policy["ingress"]
            for port in rule["ports"]
            if any(
                peer.get("podSelector", {}).get("matchLabels") == prometheus
                for peer in rule["from"]
            )
        ]
        assert ports == [endpoint_of(monitor)["port"]]


def test_no_label_of_a_target_pushes_a_label_of_a_metric_aside() -> None:
    for monitor in monitored().of_kind("ServiceMonitor", "PodMonitor"):
        relabelings = endpoint_of(monitor)["relabelings"]
        given = {item["targetLabel"]: item["replacement"] for item in relabelings[:2]
                 if "targetLabel" in item}  # fmt: skip
        assert given["job"] == monitor["metadata"]["name"]
        assert set(given) <= {"job", "pool"}
    (monitor,) = monitored().of_kind("ServiceMonitor")
    assert {"action": "labeldrop", "regex": "service"} in endpoint_of(monitor)["relabelings"]


def test_the_coordinator_with_tls_is_scraped_with_the_authority_of_its_secret() -> None:
    tls = {"coordinator": {"existingSecret": "tls", "clientCertificates": True}}
    security = {"allowUnauthenticated": True, "tls": tls}
    with pytest.raises(Refused, match="monitoring.monitors.clientSecret is required"):
        monitored({"security": security})
    mine = {"monitors": {"clientSecret": "mine"}}
    (monitor,) = monitored({"security": security, "monitoring": mine}).of_kind("ServiceMonitor")
    assert endpoint_of(monitor)["scheme"] == "https"
    assert endpoint_of(monitor)["tlsConfig"] == {
        "serverName": "paceline-coordinator.demo.svc",
        "ca": {"secret": {"name": "tls", "key": "ca.crt"}},
        "cert": {"secret": {"name": "mine", "key": "tls.crt"}},
        "keySecret": {"name": "mine", "key": "tls.key"},
    }
    assert faults_of(monitor, VERSIONS[-1]) == []


def test_rules_and_dashboards_are_those_of_the_files() -> None:
    values = {"rules": {"labels": {"release": "p"}}, "dashboards": {"folder": "Inference"}}
    manifests = monitored({"monitoring": values})
    for path in RULES:
        rule = manifests.one("PrometheusRule", f"paceline-{path.stem}")
        assert rule["spec"] == yaml.safe_load(path.read_text())
        assert rule["metadata"]["labels"]["release"] == "p"
    for path in DASHBOARDS:
        item = manifests.one("ConfigMap", f"paceline-dashboard-{path.stem}")
        (text,) = item["data"].values()
        assert json.loads(text) == json.loads(path.read_text())
        assert item["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert item["metadata"]["annotations"] == {"grafana_folder": "Inference"}


def test_annotations_name_the_port_of_the_metrics() -> None:
    values = {
        "monitoring": {"scrapeAnnotations": True},
        "target": {"podAnnotations": {"prometheus.io/scrape": "false"}},
    }
    for name, pod in render(values).pods():
        annotations = pod["metadata"].get("annotations", {})
        if name == "paceline-redis":
            assert annotations == {}
            continue
        (port,) = [
            item["containerPort"]
            for item in pod["spec"]["containers"][0]["ports"]
            if item["name"] == ("http" if name == "paceline-coordinator" else "metrics")
        ]
        assert annotations == {
            "prometheus.io/scrape": "false" if name == "paceline-target" else "true",
            "prometheus.io/path": "/metrics",
            "prometheus.io/port": str(port),
        }


@pytest.mark.parametrize("key", ["monitors", "rules", "dashboards"])
def test_what_is_neither_auto_nor_true_nor_false_is_refused(key: str) -> None:
    with pytest.raises(Refused, match=re.escape(f"/monitoring/{key}/enabled")):
        render({"monitoring": {key: {"enabled": "yes"}}})
