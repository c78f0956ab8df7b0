"""The services understand what their pods tell them: variables are settings, files are mounted."""

import os
from pathlib import Path
from typing import Any

import pytest

from coordinator.config import CoordinatorSettings
from draft_service.config import DraftSettings
from paceline.config import ServiceSettings, read_settings
from target_service.config import TargetSettings
from tests.chart.rendering import CI_VALUES, Object, env_of, needs_helm, render

pytestmark = needs_helm


def settings_of(pod: Object, monkeypatch: pytest.MonkeyPatch) -> ServiceSettings:
    classes: dict[str, type[ServiceSettings]] = {
        "coordinator": CoordinatorSettings,
        "target_service": TargetSettings,
        "draft_service": DraftSettings,
    }
    env = env_of(pod)
    texts = {name: value for name, value in env.items() if isinstance(value, str)}
    monkeypatch.setattr(os, "environ", texts)
    command = pod["spec"]["containers"][0]["command"]
    assert command[:2] == ["python", "-m"]
    return read_settings(classes[command[2]])


def ports_of(pod: Object) -> dict[str, int]:
    return {item["name"]: item["containerPort"] for item in pod["spec"]["containers"][0]["ports"]}


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem.removesuffix("-values"))
def test_services_understand_all_variables_of_their_pods(
    values: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, pod in render(files=(values,)).pods():
        if name.endswith("-redis"):
            continue
        settings: Any = settings_of(pod, monkeypatch)
        ports = ports_of(pod)
        assert settings.host == "0.0.0.0"
        assert settings.health_port == ports["health"]
        if isinstance(settings, CoordinatorSettings):
            assert (settings.http_port, settings.grpc_port) == (ports["http"], ports["grpc"])
        else:
            assert (settings.port, settings.metrics_port) == (ports["grpc"], ports["metrics"])


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem.removesuffix("-values"))
def test_every_file_of_a_setting_is_mounted_whole_so_that_it_can_be_replaced(values: Path) -> None:
    for _, pod in render(files=(values,)).pods():
        box = pod["spec"]["containers"][0]
        volumes = {item["name"]: item for item in pod["spec"]["volumes"]}
        there = set()
        for mount in box["volumeMounts"]:
            assert "subPath" not in mount  # the kubelet never writes those anew
            for item in volumes[mount["name"]].get("secret", {}).get("items", []):
                there.add(f"{mount['mountPath']}/{item['path']}")
        files = {value for name, value in env_of(pod).items() if name.endswith("_FILE")}
        assert files == there


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem.removesuffix("-values"))
def test_no_manifest_has_a_secret_in_it(values: Path) -> None:
    manifests = render(files=(values,))
    assert manifests.names("Secret") == set()
    for _, pod in manifests.pods():
        for name, value in env_of(pod).items():
            is_secret = any(part in name for part in ("TOKEN", "PASSWORD", "_KEY", "HEADERS"))
            if is_secret and not name.endswith(("_FILE", "_TOKENS", "MAX_BATCH_TOKENS")):
                assert isinstance(value, dict) and "secretKeyRef" in value, name


def pods_of(name: str) -> dict[str, Object]:
    (file,) = (path for path in CI_VALUES if path.name == f"{name}-values.yaml")
    return dict(render(files=(file,)).pods())


def test_with_tls_every_service_shows_a_certificate_and_asks_for_one() -> None:
    pods = pods_of("tls")
    coordinator = env_of(pods["paceline-coordinator"])
    assert coordinator["PACELINE_TLS_CERTIFICATE_FILE"] == "/etc/paceline/tls/tls.crt"
    assert coordinator["PACELINE_WORKER_TLS_CA_FILE"] == "/etc/paceline/worker-ca/ca.crt"
    assert coordinator["PACELINE_WORKER_TLS_SERVER_NAME"] == "paceline-target.demo.svc"
    assert coordinator["PACELINE_WORKER_TLS_CERTIFICATE_FILE"] == "/etc/paceline/worker-tls/tls.crt"
    for name in ("paceline-target", "paceline-draft-default"):
        worker = env_of(pods[name])
        assert worker["PACELINE_TLS_CLIENT_CA_FILE"] == "/etc/paceline/tls/ca.crt"
        assert worker["PACELINE_API_KEYS_FILE"] == "/etc/paceline/keys/keys"
        assert "PACELINE_ALLOW_UNAUTHENTICATED" not in worker


def test_the_coordinator_is_not_given_the_workers_private_key() -> None:
    pod = pods_of("tls")["paceline-coordinator"]
    for volume in pod["spec"]["volumes"]:
        if volume.get("secret", {}).get("secretName") == "paceline-worker-tls":
            assert [item["key"] for item in volume["secret"]["items"]] == ["ca.crt"]


def test_another_redis_is_reached_as_the_values_say() -> None:
    pods = pods_of("external-redis")
    env = env_of(pods["paceline-coordinator"])
    assert "paceline-redis" not in pods
    assert env["PACELINE_REDIS_URL"].startswith(
        "rediss+sentinel://sentinel-0.redis.data.svc:26379,"
    )
    assert env["PACELINE_REDIS_PASSWORD_FILE"] == "/etc/paceline/redis-password/password"
    assert env["PACELINE_SENTINEL_PASSWORD_FILE"].endswith("/sentinel-password")
    assert env["PACELINE_REDIS_TLS_CERTIFICATE_FILE"] == "/etc/paceline/redis-tls/tls.crt"


def test_one_password_may_do_for_redis_and_its_sentinels() -> None:
    external = {
        "url": "redis+sentinel://sentinel:26379/paceline/0",
        "existingSecret": "redis",
        "sentinelPasswordKey": "password",
    }
    values = {"redis": {"enabled": False, "external": external}}
    pod = dict(render(values).pods())["paceline-coordinator"]
    env = env_of(pod)
    assert env["PACELINE_SENTINEL_PASSWORD_FILE"] == env["PACELINE_REDIS_PASSWORD_FILE"]
    (volume,) = (item for item in pod["spec"]["volumes"] if item["name"] == "redis-password")
    assert volume["secret"]["items"] == [{"key": "password", "path": "password"}]


def test_drafters_that_run_the_targets_model_are_told_which_it_is() -> None:
    pods = pods_of("ranks")
    target = env_of(pods["paceline-target-0"])["PACELINE_MODEL"]
    assert env_of(pods["paceline-draft-eagle"])["PACELINE_MODEL"] == target
    assert env_of(pods["paceline-draft-small"])["PACELINE_MODEL"] != target
    assert "PACELINE_MODEL" not in env_of(dict(render().pods())["paceline-draft-default"])


def test_a_reference_takes_the_place_of_another_one_of_the_same_name() -> None:
    field = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    secret = {"valueFrom": {"configMapKeyRef": {"name": "mine", "key": "token"}}}
    values = {
        "huggingFace": {"existingSecret": "token"},
        "defaults": {"extraEnv": {"A": field, "HF_TOKEN": field}},
        "target": {"extraEnv": {"A": secret, "HF_TOKEN": secret}},
    }
    pods = dict(render(values).pods())
    for name in ("A", "HF_TOKEN"):
        assert env_of(pods["paceline-target"])[name] == secret["valueFrom"]
        assert env_of(pods["paceline-draft-default"])[name] == field["valueFrom"]
