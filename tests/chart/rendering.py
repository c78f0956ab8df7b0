"""The chart as the real `helm` renders it; each way of asking is rendered once.

`.venv/.helm` of the Makefile gets helm. Without one, tests skip.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

Object = dict[str, Any]

CHART = Path(__file__).resolve().parents[2] / "helm"
CI_VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
HELM = shutil.which("helm", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
needs_helm = pytest.mark.skipif(
    HELM is None, reason="no helm on the PATH; `make test` gets one where it can"
)


class Refused(Exception):
    """What helm said when it did not render."""


def helm(*arguments: str | Path, stdin: str = "") -> str:
    """What it prints; raises `Refused`."""
    assert HELM is not None
    command = [HELM, *map(str, arguments)]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


class Manifests(list[Object]):
    """Objects that are rendered together."""

    def of_kind(self, *kinds: str) -> "Manifests":
        return Manifests(item for item in self if item["kind"] in kinds)

    def one(self, kind: str, name: str) -> Object:
        (found,) = (item for item in self.of_kind(kind) if item["metadata"]["name"] == name)
        return found

    def names(self, kind: str) -> set[str]:
        return {item["metadata"]["name"] for item in self.of_kind(kind)}

    def workloads(self) -> "Manifests":
        return self.of_kind("Deployment", "StatefulSet", "LeaderWorkerSet")

    def pods(self) -> Iterator[tuple[str, Object]]:
        """Name of the workload and template of the pod, for all there are."""
        for item in self.workloads():
            name, spec = item["metadata"]["name"], item["spec"]
            if item["kind"] == "LeaderWorkerSet":
                yield name, spec["leaderWorkerTemplate"]["workerTemplate"]
            else:
                yield name, spec["template"]


def render(
    values: Mapping[str, Any] | None = None,
    files: Sequence[Path] = (),
    kube_version: str = "1.30.0",
    api_versions: Sequence[str] = (),
    release: str = "paceline",
) -> Manifests:
    """The objects of a release in the namespace `demo`, hooks included; do not change them."""
    given = json.dumps(values or {}, sort_keys=True)
    return _render(given, tuple(files), kube_version, tuple(api_versions), release)


def env_of(pod: Object) -> dict[str, Any]:
    """Variables of a pod's first container, to text or `valueFrom`."""
    return {
        item["name"]: item.get("value", item.get("valueFrom"))
        for item in pod["spec"]["containers"][0].get("env", [])
    }


@cache
def _render(
    values: str, files: tuple[Path, ...], kube_version: str, apis: tuple[str, ...], release: str
) -> Manifests:
    options: list[str | Path] = ["--namespace", "demo", "--kube-version", kube_version]
    for file in files:
        options += ["--values", file]
    for api in apis:
        options += ["--api-versions", api]
    text = helm("template", release, CHART, *options, "--values", "-", stdin=values)
    return Manifests(item for item in yaml.load_all(text, LOADER) if item)
