"""Every set of values in helm/ci is admitted by every version of Kubernetes that we support."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.chart.kubernetes_schemas import FIRST, VERSIONS, faults_of, minor
from tests.chart.rendering import CHART, CI_VALUES, helm, needs_helm, render

pytestmark = needs_helm

TEMPLATES = "".join(path.read_text() for path in sorted((CHART / "templates").rglob("*.*")))
CHANGES = [FIRST, *re.findall(r'semverCompare ">=(\d+\.\d+)\.0-0" \S+KubeVersion\.', TEMPLATES)]
"""Versions from which on the chart renders something else."""


def rendered_as(version: str) -> str:
    """The oldest version for which the chart renders the same as for this one."""
    known = max((change for change in CHANGES if minor(change) <= minor(version)), key=minor)
    return f"{known}.0"


def test_what_depends_on_the_version_says_from_which_one_on() -> None:
    assert len(CHANGES) - 1 == TEMPLATES.count("KubeVersion")
    newest = VERSIONS[-1]
    assert render(kube_version=newest) == render(kube_version=rendered_as(newest))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem.removesuffix("-values"))
def test_kubernetes_admits_all_objects(values: Path, version: str) -> None:
    manifests = render(files=(values,), kube_version=rendered_as(version))
    assert [fault for item in manifests for fault in faults_of(item, version)] == []


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem.removesuffix("-values"))
def test_helm_finds_no_fault_with_the_chart(values: Path) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART, "--values", values)


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem.removesuffix("-values"))
def test_no_object_and_no_variable_is_there_twice(values: Path) -> None:
    manifests = render(files=(values,))
    objects = Counter((item["kind"], item["metadata"]["name"]) for item in manifests)
    assert [item for item, count in objects.items() if count > 1] == []
    for name, pod in manifests.pods():
        for box in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]:
            names = Counter(item["name"] for item in box.get("env", []))
            assert [item for item, count in names.items() if count > 1] == [], name
