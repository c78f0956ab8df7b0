"""Who finds whom, and who may reach whom."""

from pathlib import Path

import pytest

from paceline.workers.discovery.source_names import KubernetesSource, parse_source
from tests.chart.rendering import CHART, env_of, needs_helm, render

pytestmark = needs_helm

COORDINATOR = {"app.kubernetes.io/component": "coordinator"}


def matches(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def test_selectors_find_the_pods_of_their_own_workload_and_no_others() -> None:
    manifests = render({"drafts": {"other": {}}})
    labels = {name: pod["metadata"]["labels"] for name, pod in manifests.pods()}
    for item in manifests.workloads():
        name, selector = item["metadata"]["name"], item["spec"]["selector"]["matchLabels"]
        assert [own for own in labels if matches(selector, labels[own])] == [name]
    for service in manifests.of_kind("Service"):
        selector = service["spec"]["selector"]
        assert [own for own in labels if matches(selector, labels[own])] == [
            service["metadata"]["name"]
        ]


def test_ports_of_services_are_ports_of_their_pods() -> None:
    manifests = render()
    pods = dict(manifests.pods())
    for service in manifests.of_kind("Service"):
        (box,) = pods[service["metadata"]["name"]]["spec"]["containers"]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= {
            port["name"] for port in box["ports"]
        }


@pytest.mark.parametrize("role", ["target", "draft"])
def test_the_coordinator_finds_the_services_of_each_role_by_their_labels(role: str) -> None:
    manifests = render({"drafts": {"late": {}}})
    env = env_of(dict(manifests.pods())["paceline-coordinator"])
    source = parse_source(env[f"PACELINE_{role.upper()}S"])
    assert isinstance(source, KubernetesSource)
    wanted = dict(item.split("=") for item in source.selector.split(","))
    found = {
        service["metadata"]["name"]
        for service in manifests.of_kind("Service")
        if matches(wanted, service["metadata"]["labels"])
    }
    pools = {"paceline-draft-default", "paceline-draft-late"}
    assert found == (pools if role == "draft" else {"paceline-target"})
    for name in found:
        service = manifests.one("Service", name)["spec"]
        assert service["clusterIP"] == "None"
        assert "grpc" in {port["name"] for port in service["ports"]}


def test_every_pod_is_closed_but_to_those_who_need_it() -> None:
    manifests = render()
    policies = {
        item["metadata"]["name"]: item["spec"] for item in manifests.of_kind("NetworkPolicy")
    }
    pods = dict(manifests.pods())
    assert set(policies) == set(pods)
    for name, policy in policies.items():
        assert matches(policy["podSelector"]["matchLabels"], pods[name]["metadata"]["labels"])
        assert "Ingress" in policy["policyTypes"]
        for rule in policy["ingress"]:
            assert rule["ports"] and rule["from"]
            ports = {port["port"] for port in rule["ports"]}
            if name == "paceline-coordinator":
                assert ports <= {"http", "grpc"}
            elif ports != {"metrics"}:
                (peer,) = rule["from"]
                assert matches(COORDINATOR, peer["podSelector"]["matchLabels"])


def test_with_egress_closed_the_coordinator_still_reaches_all_that_it_needs() -> None:
    manifests = render({"networkPolicy": {"egress": {"enabled": True, "rules": []}}})
    pods = dict(manifests.pods())
    policies = {name: manifests.one("NetworkPolicy", name)["spec"] for name in pods}
    reached: dict[str, set[str]] = {name: set() for name in pods}
    for rule in policies["paceline-coordinator"]["egress"][1:]:
        (peer,) = rule["to"]
        for name, pod in pods.items():
            if matches(peer["podSelector"]["matchLabels"], pod["metadata"]["labels"]):
                reached[name] |= {port["port"] for port in rule["ports"]}
    workers = {"paceline-target": {"grpc"}, "paceline-draft-default": {"grpc"}}
    assert reached == {**workers, "paceline-redis": {"redis"}, "paceline-coordinator": set()}
    for name in workers:
        (dns,) = policies[name]["egress"]
        assert {port["port"] for port in dns["ports"]} == {53}


def test_redis_connects_to_nobody() -> None:
    policy = render().one("NetworkPolicy", "paceline-redis")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"] and policy["egress"] == []


def test_ports_of_grpc_say_that_they_speak_in_the_clear_only_where_they_do() -> None:
    def protocols(*files: Path) -> set[str | None]:
        services = render(files=files).of_kind("Service")
        ports = [port for service in services for port in service["spec"]["ports"]]
        return {port.get("appProtocol") for port in ports if port["name"] == "grpc"}

    assert protocols() == {"kubernetes.io/h2c"}
    assert protocols(CHART / "ci" / "tls-values.yaml") == {None}
