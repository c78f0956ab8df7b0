"""What pods are told about traces and logs is what OpenTelemetry and our services understand."""

import re
from typing import Any

import pytest
from opentelemetry.sdk.resources import OTELResourceDetector

from tests.chart.rendering import Refused, env_of, needs_helm, render

pytestmark = needs_helm

OURS = ["coordinator", "draft-default", "target"]
TRACED: dict[str, Any] = {
    "telemetry": {
        "endpoint": "http://collector:4317",
        "samplerArg": 0.25,
        "resourceAttributes": {"k8s.cluster.name": "north", "k8s.container.name": "other"},
        "headers": {"existingSecret": "collector"},
    }
}
POD = {"metadata.name": "a-pod", "metadata.uid": "a-uid", "spec.nodeName": "a-node"}


def env(values: dict[str, Any], name: str) -> dict[str, Any]:
    return env_of(dict(render(values).pods())[f"paceline-{name}"])


def expanded(variables: dict[str, Any]) -> dict[str, str]:
    """As the kubelet gives them to the process: a text sees the variables before it."""
    found: dict[str, str] = {}
    for name, value in variables.items():
        if isinstance(value, str):
            found[name] = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], value)
        elif "fieldRef" in value:
            found[name] = POD[value["fieldRef"]["fieldPath"]]
    return found


@pytest.mark.parametrize("name", OURS)
def test_spans_say_which_pod_recorded_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in expanded(env(TRACED, name)).items():
        monkeypatch.setenv(variable, value)
    assert OTELResourceDetector().detect().attributes == {
        "k8s.namespace.name": "demo",
        "k8s.pod.name": "a-pod",
        "k8s.pod.uid": "a-uid",
        "k8s.node.name": "a-node",
        "k8s.deployment.name": f"paceline-{name}",
        "k8s.cluster.name": "north",
        "k8s.container.name": "other",
        "service.instance.id": f"demo.a-pod.{name.partition('-')[0]}",
    }


@pytest.mark.parametrize("name", OURS)
def test_spans_go_where_the_values_say(name: str) -> None:
    found = env(TRACED, name)
    assert found["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4317"
    assert found["OTEL_EXPORTER_OTLP_PROTOCOL"] == "grpc"
    assert found["OTEL_TRACES_SAMPLER"] == "parentbased_traceidratio"
    assert found["OTEL_TRACES_SAMPLER_ARG"] == "0.25"
    secret = {"secretKeyRef": {"name": "collector", "key": "headers"}}
    assert found["OTEL_EXPORTER_OTLP_HEADERS"] == secret


def test_without_a_collector_nothing_is_said_about_traces() -> None:
    for _, pod in render().pods():
        assert [name for name in env_of(pod) if name.startswith("OTEL_")] == []


def test_the_variables_of_a_workload_win_and_none_is_there_twice() -> None:
    own = {"OTEL_TRACES_SAMPLER": "always_off", "OTEL_SERVICE_NAME": "mine"}
    values = {**TRACED, "target": {"extraEnv": own, "settings": {"log_level": "debug"}}}
    pod = dict(render(values).pods())["paceline-target"]
    names = [item["name"] for item in pod["spec"]["containers"][0]["env"]]
    assert len(names) == len(set(names))
    found = env_of(pod)
    assert {**found, **own} == found
    assert found["PACELINE_LOG_LEVEL"] == "debug"


def test_our_pods_log_as_the_values_say_and_redis_is_told_nothing() -> None:
    pods = dict(render({"telemetry": {"logLevel": "warning", "logFormat": "text"}}).pods())
    for name in OURS:
        found = env_of(pods[f"paceline-{name}"])
        assert (found["PACELINE_LOG_LEVEL"], found["PACELINE_LOG_FORMAT"]) == ("warning", "text")
    assert env_of(dict(render(TRACED).pods())["paceline-redis"]) == {}
    assert env({}, "target")["PACELINE_LOG_FORMAT"] == "json"


@pytest.mark.parametrize(
    "endpoint, port",
    [
        ("http://collector:4317", 4317),
        ("https://collector.example/otlp", 443),
        ("http://[fd00::17]", 80),
        ("", None),
    ],
)
def test_spans_get_out_where_pods_may_connect_to_little(endpoint: str, port: int | None) -> None:
    egress = {"enabled": True, "rules": []}
    values = {"telemetry": {"endpoint": endpoint}, "networkPolicy": {"egress": egress}}
    for name in OURS:
        policy = render(values).one("NetworkPolicy", f"paceline-{name}")["spec"]
        ports = [
            item["port"]
            for rule in policy["egress"]
            for item in rule["ports"]
            if "to" not in rule and item["port"] != 53
        ]
        assert ports == ([] if port is None else [port])


@pytest.mark.parametrize(
    "telemetry, said",
    [
        ({"endpoint": "collector:4317"}, "/telemetry/endpoint"),
        ({"sampler": "sometimes"}, "/telemetry/sampler"),
        ({"resourceAttributes": {"a": "b,c=d"}}, "/telemetry/resourceAttributes/a"),
    ],
)
def test_what_opentelemetry_could_not_read_is_refused(telemetry: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused, match=said):
        render({"telemetry": telemetry})
