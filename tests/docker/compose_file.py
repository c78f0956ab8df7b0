"""docker/compose.yaml as Compose reads it: anchors merged, variables replaced by their defaults."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from image_stages import ROOT

COMPOSE = ROOT / "docker" / "compose.yaml"
KEYS = ROOT / "docker" / "compose.keys.yaml"
MODULES = {
    "target": "target_service",
    "draft": "draft_service",
    "coordinator": "coordinator",
}
"""What services of ours run."""
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}")
_UNITS_S = {"s": 1.0, "m": 60.0}


@dataclass(frozen=True)
class Service:
    """One service of the file."""

    name: str
    values: dict[str, Any]

    @property
    def environment(self) -> dict[str, str]:
        """Variables by name."""
        found: dict[str, str] = self.values.get("environment", {})
        assert all(isinstance(text, str) for text in found.values()), found
        return found

    @property
    def health_command(self) -> list[str]:
        """What tells by its status whether it is healthy."""
        kind, *command = self.values["healthcheck"]["test"]
        assert kind == "CMD", kind
        return list(command)

    @property
    def stop_grace_s(self) -> float:
        """From SIGTERM to SIGKILL."""
        return seconds(self.values["stop_grace_period"])


def read_compose(path: Path = COMPOSE) -> dict[str, Any]:
    """The whole file."""
    read: dict[str, Any] = _resolved(yaml.safe_load(path.read_text()))
    return read


def read_services() -> dict[str, Service]:
    """Its services by name."""
    return {name: Service(name, values) for name, values in read_compose()["services"].items()}


def seconds(text: str) -> float:
    """`35s`, `15m`."""
    return float(text[:-1]) * _UNITS_S[text[-1]]


def _resolved(value: Any) -> Any:
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: found[2] or "", value)
    if isinstance(value, list):
        return [_resolved(item) for item in value]
    if isinstance(value, dict):
        return {key: _resolved(item) for key, item in value.items()}
    return value
