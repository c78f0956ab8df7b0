"""docker/compose.yaml: settings that exist, limits that hold, and time to leave."""

from typing import Any

import pytest
from compose_file import KEYS, MODULES, Service, read_compose, read_services, seconds
from image_stages import read_stages

from coordinator.config import CoordinatorSettings
from draft_service.config import DraftSettings
from paceline import __version__
from paceline.config import Settings, read_settings
from paceline.heads.shipped import shipped_head
from paceline.server import STOP_GRACE_S
from target_service.config import TargetSettings

SERVICES = read_services()
SETTINGS: dict[str, type[Settings]] = {
    "target": TargetSettings,
    "draft": DraftSettings,
    "coordinator": CoordinatorSettings,
}
OURS = list(SETTINGS)
TO_END_S = 5.0
"""For a process to end when nothing waits for it any more."""


def settings_of(name: str, environment: dict[str, str], patch: pytest.MonkeyPatch) -> Any:
    """As the service itself would read them."""
    for key, text in environment.items():
        patch.setenv(key, text)
    return read_settings(SETTINGS[name])


@pytest.mark.parametrize("name", OURS)
def test_a_service_takes_its_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(name, SERVICES[name].environment, monkeypatch)
    assert settings.host == "0.0.0.0"


@pytest.mark.parametrize("name", OURS)
def test_a_service_takes_them_with_those_for_keys_too(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = read_compose(KEYS)["services"][name]
    environment = SERVICES[name].environment | added["environment"]
    settings = settings_of(name, environment, monkeypatch)
    assert not settings.allow_unauthenticated
    mounted = {f"/run/secrets/{secret}" for secret in added["secrets"]}
    files = {text for key, text in added["environment"].items() if key.endswith("_FILE")}
    assert files == mounted
    assert set(added["secrets"]) <= set(read_compose(KEYS)["secrets"])


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES.keys())
def test_a_service_can_write_nothing_and_gain_nothing(service: Service) -> None:
    assert service.values["read_only"] is True
    assert service.values["cap_drop"] == ["ALL"]
    assert service.values["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "network_mode", "pid", "ipc"} & set(service.values)
    (tmp,) = service.values["tmpfs"]
    assert tmp.startswith("/tmp:size=")


@pytest.mark.parametrize("name", OURS)
def test_a_service_is_killed_only_when_it_cannot_still_be_draining(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(name, SERVICES[name].environment, monkeypatch)
    assert SERVICES[name].stop_grace_s >= settings.drain_seconds + STOP_GRACE_S + TO_END_S


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES.keys())
def test_every_service_says_whether_it_is_healthy(service: Service) -> None:
    health = service.values["healthcheck"]
    assert seconds(health["timeout"]) < seconds(health["interval"])
    assert service.health_command


@pytest.mark.parametrize("name", OURS)
def test_health_is_asked_where_a_service_listens(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(name, SERVICES[name].environment, monkeypatch)
    port = settings.grpc_port if name == "coordinator" else settings.port
    program, script, address, asked = SERVICES[name].health_command
    assert (program, script) == ("python", "healthcheck.py")
    assert (address, asked) == (f"127.0.0.1:{port}", f"paceline.v1.{name.title()}Service")


def test_ports_are_open_to_this_machine_only() -> None:
    open_ports = {name: service.values.get("ports", []) for name, service in SERVICES.items()}
    assert open_ports.pop("coordinator") == ["127.0.0.1:8000:8000", "127.0.0.1:50051:50051"]
    assert not any(open_ports.values())


@pytest.mark.parametrize("name", OURS)
def test_images_and_commands_are_those_of_the_dockerfile(name: str) -> None:
    values, stages = SERVICES[name].values, read_stages()
    target = values["build"]["target"]
    assert values["image"] == f"paceline-{target}:{__version__}"
    assert values["build"]["dockerfile"] == "docker/Dockerfile"
    command = values.get("command", list(stages[target].config.command))
    assert command == [MODULES[name]]
    for volume in values.get("volumes", []):
        assert volume.partition(":")[2] == stages[target].config.environment["PACELINE_CACHE_DIR"]
    assert set(values["build"]["args"]) <= {
        *stages["coordinator"].outer_arguments,
        "TORCH_INDEX_URL",
    }


@pytest.mark.parametrize(
    ("model", "drafter"), [("", "hybrid"), ("somebody/with-a-model-of-their-own", "suffix")]
)
def test_drafts_use_the_head_that_comes_with_a_model(
    model: str, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"PACELINE_MODEL": model}
    target = settings_of("target", SERVICES["target"].environment | chosen, monkeypatch)
    assert (target.model, target.head) == (model, str(shipped_head(model) or ""))
    monkeypatch.undo()
    draft = settings_of("draft", SERVICES["draft"].environment | chosen, monkeypatch)
    assert (draft.drafter, draft.head) == (drafter, target.head)


def test_workers_are_found_by_names_that_follow_them() -> None:
    found = SERVICES["coordinator"].environment
    assert found["PACELINE_TARGETS"] == f"dns:///target:{TargetSettings().port}"
    assert found["PACELINE_DRAFTS"] == f"dns:///draft:{DraftSettings().port}"
