"""What values may be: what the schema says, what goes together, and what is written about them."""

import json
import sys
from typing import Any

import jsonschema
import pytest

from paceline.config import describe_settings
from tests.chart.kubernetes_schemas import VERSIONS, faults_of
from tests.chart.rendering import CHART, Refused, env_of, needs_helm, render

sys.path.insert(0, str(CHART))
from values_comments import described_keys
from values_schema import DERIVED, DERIVED_PARTS, SETTINGS
from write_values_reference import README, SCHEMA, schema_text, with_table


def refusal(values: dict[str, Any]) -> str:
    with pytest.raises(Refused) as refused:
        render(values)
    return str(refused.value)


def external(enabled: bool = False, **values: Any) -> dict[str, Any]:
    return {"redis": {"enabled": enabled, "external": values}}


def test_schema_and_reference_are_those_of_the_values_file() -> None:
    assert SCHEMA.read_text() == schema_text(), "run `make format`"
    assert README.read_text() == with_table(README.read_text()), "run `make format`"


def test_the_schema_is_a_valid_one_that_describes_every_key() -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    undescribed: list[str] = []

    def look(part: Any, path: str) -> None:
        if isinstance(part, dict):
            for name, child in part.get("properties", {}).items():
                if "$ref" not in child and "description" not in child and "requests" not in part:
                    undescribed.append(f"{path}.{name}")
                look(child, f"{path}.{name}")
            if "properties" in part:
                assert part.get("additionalProperties") is False, path

    look({"properties": schema["$defs"]}["properties"]["draftPool"], "draftPool")
    look(schema, "")
    assert set(undescribed) <= {
        f".defaults.resources.{name}" for name in ("requests", "limits", "claims")
    }


def test_every_block_of_a_workload_has_the_same_keys() -> None:
    schema = json.loads(SCHEMA.read_text())
    blocks = schema["properties"]
    shared = set(blocks["defaults"]["properties"])
    for_workers = shared | set(blocks["workerDefaults"]["properties"])
    assert shared < set(blocks["coordinator"]["properties"])
    assert shared < set(blocks["redis"]["properties"])
    assert for_workers < set(blocks["target"]["properties"])
    assert for_workers < set(schema["$defs"]["draftPool"]["properties"])


@pytest.mark.parametrize("block", sorted(SETTINGS))
def test_every_setting_of_a_service_is_a_value_or_derived_from_values(block: str) -> None:
    schema = json.loads(SCHEMA.read_text())
    found = (schema["$defs"]["draftPool"] if block == "drafts" else schema["properties"][block])[
        "properties"
    ]["settings"]["properties"]
    for doc in describe_settings(SETTINGS[block]):
        derived = doc.field in DERIVED or any(part in doc.field for part in DERIVED_PARTS)
        assert derived != (doc.field in found), doc.field


@needs_helm
@pytest.mark.parametrize(
    "values, said",
    [
        ({"coordinater": {}}, "coordinater"),
        ({"coordinator": {"replica": 2}}, "replica"),
        ({"target": {"settings": {"modle": "x"}}}, "modle"),
        ({"target": {"settings": {"max_model_len": 0}}}, "/target/settings/max_model_len"),
        ({"drafts": {"a": {"settings": {"drafter": "magic"}}}}, "/drafts/a/settings/drafter"),
        ({"drafts": {"Upper_case": {}}}, "Upper_case"),
        ({"defaults": {"replicas": -1}}, "/defaults/replicas"),
        ({"coordinator": {"gpu": {"count": 1}}}, "gpu"),
        ({"defaults": {"podLabels": {"paceline-pool": "x"}}}, "paceline-pool"),
        ({"commonLabels": {"app.kubernetes.io/name": "x"}}, "app.kubernetes.io/name"),
        ({"redis": {"external": {"url": "http://x"}}}, "/redis/external/url"),
        ({"coordinator": {"extraEnv": {"A": {"value": "x"}}}}, "/coordinator/extraEnv/A"),
        ({"target": {"extraEnv": {"PACELINE_HEALTH_PORT": 1}}}, "PACELINE_HEALTH_PORT"),
        ({"target": {"extraArgs": ["--port=1"]}}, "/target/extraArgs/0"),
        ({"target": {"resources": {"requests": {"cpu": "abc"}}}}, "/target/resources/requests/cpu"),
        ({"target": {"resources": {"limits": {"gpu": {"x": 1}}}}}, "/target/resources/limits/gpu"),
        ({"target": {"sharedMemory": "256m"}}, "/target/sharedMemory"),
        ({"target": {"startupSeconds": 2**31}}, "/target/startupSeconds"),
        ({"security": {"apiKeys": {"existingSecret": "My_Keys"}}}, "/apiKeys/existingSecret"),
        ({"fullnameOverride": "UPPER"}, "/fullnameOverride"),
        (
            {"networkPolicy": {"clients": [{"podSelector": {"matchLabel": {"a": "b"}}}]}},
            "/networkPolicy/clients/0/podSelector",
        ),
        ({"networkPolicy": {"prometheus": [{}]}}, "/networkPolicy/prometheus/0"),
    ],
)
def test_the_schema_names_what_it_refuses(values: dict[str, Any], said: str) -> None:
    assert said in refusal(values)


@needs_helm
@pytest.mark.parametrize(
    "values, said",
    [
        ({"security": {"allowUnauthenticated": False}}, "security.apiKeys.existingSecret"),
        (
            {"security": {"allowUnauthenticated": False, "apiKeys": {"existingSecret": "a"}}},
            "security.workerApiKeys.existingSecret",
        ),
        (
            {"security": {"tls": {"coordinator": {"clientCertificates": True}}}},
            "needs security.tls.coordinator.existingSecret",
        ),
        (
            {"security": {"tls": {"workers": {"clientSecret": "a"}}}},
            "security.tls.workers.clientSecret is set, which needs",
        ),
        (external(url="redis://a", enabled=True), "redis.enabled is true and redis.external.url"),
        (external(url="redis://:secret@a"), "redis.external.url has a login in it"),
        (external(existingSecret="a"), "existingSecret is set, which needs redis.external.url"),
        (external(url="redis://a", username="a"), "which needs redis.external.existingSecret"),
        (
            external(url="redis://a", existingSecret="a", sentinelPasswordKey="a"),
            "redis.external.url names no Sentinels",
        ),
        (external(url="redis://a", tls={"existingSecret": "a"}), "expected rediss://"),
        (
            external(url="rediss://a", tls={"clientCertificate": True}),
            "which needs redis.external.tls.existingSecret",
        ),
        ({"redis": {"replicas": 2}}, "redis.replicas is 2"),
        ({"monitoring": {"monitors": {"interval": "5s"}}}, "scrapeTimeout is 10s, longer than"),
        ({"target": {"tensorParallelSize": 4, "gpu": {"count": 4}}}, "target.gpu.count is 4"),
        (
            {"drafts": {"a": {"settings": {"drafter": "draft-model"}}}},
            "drafts.a.settings.model is required",
        ),
        (
            {"drafts": {"a": {"settings": {"drafter": "eagle"}}}},
            "drafts.a.settings.head is required",
        ),
        (
            {"drafts": {"a": {"settings": {"drafter": "medusa", "head": "/head"}}}},
            "target.settings.head (or feature_layers) is required by the drafter medusa of",
        ),
        (
            {"drafts": {"a": {"updateStrategy": {"maxSurge": "0%"}}}},
            "drafts.a.updateStrategy.maxSurge and maxUnavailable are both 0",
        ),
        ({"target": {"service": {"type": "LoadBalancer"}}}, "target.service.type is LoadBalancer"),
        (
            {"commonLabels": {"a": "1"}, "target": {"podLabels": {"a": "2"}}},
            "target.podLabels has the label a, which is in commonLabels, too",
        ),
        (
            {"commonLabels": {"a": "1"}, "monitoring": {"dashboards": {"labels": {"a": "2"}}}},
            "monitoring.dashboards.labels has the label a",
        ),
    ],
)
def test_values_that_contradict_one_another_are_refused_by_name(
    values: dict[str, Any], said: str
) -> None:
    message = refusal(values)
    assert said in message
    assert "secret@" not in message


def test_each_comment_of_the_values_file_is_one_of_a_key() -> None:
    keys = [key.path for key in described_keys()]
    assert len(keys) == len(set(keys))
    assert ("defaults", "drainSeconds") in keys


@needs_helm
@pytest.mark.parametrize("release", ["7up", "my.app"])
def test_a_release_whose_name_no_service_can_have_is_refused_unless_given_another(
    release: str,
) -> None:
    with pytest.raises(Refused, match="fullnameOverride"):
        render(release=release)
    assert "mine-target" in render({"fullnameOverride": "mine"}, release=release).names("Service")


@needs_helm
@pytest.mark.parametrize("name", ["on", "null", "n"])
def test_names_that_yaml_takes_for_something_else_stay_names(name: str) -> None:
    given = {"drafts": {name: {"runtimeClassName": "1e3"}}, "image": {"pullSecrets": ["12"]}}
    rendered = render(given | {"fullnameOverride": "mine"}, release=name)
    assert [fault for item in rendered for fault in faults_of(item, VERSIONS[0])] == []
    pool = rendered.one("Deployment", f"mine-draft-{name}")
    assert pool["spec"]["selector"]["matchLabels"]["paceline-pool"] == name
    pods = dict(rendered.pods())
    sources = env_of(pods["mine-coordinator"])["PACELINE_DRAFTS"]
    assert f"app.kubernetes.io/instance={name}&" in sources


@needs_helm
@pytest.mark.parametrize(
    "limit, room", [("256Mi", "192mb"), ("1Pi", "805306368mb"), ("100Ki", "1mb"), ("1G", "714mb")]
)
def test_redis_has_the_room_that_its_limit_leaves(limit: str, room: str) -> None:
    values = {"redis": {"resources": {"limits": {"memory": limit}}}}
    pod = dict(render(values).pods())["paceline-redis"]
    (container,) = pod["spec"]["containers"]
    assert container["command"][container["command"].index("--maxmemory") + 1] == room


@needs_helm
@pytest.mark.parametrize("tag, label", [("1.2-", "1.2"), ("a" * 70, "a" * 63), ("0.1.0", "0.1.0")])
def test_a_tag_becomes_a_label_that_kubernetes_takes(tag: str, label: str) -> None:
    for item in render({"image": {"tag": tag}}):
        assert item["metadata"]["labels"]["app.kubernetes.io/version"] == label
