"""Every set of values in helm/ci is admitted by every version of Kubernetes that we support."""

from collections import Counter
from pathlib import Path

import pytest

from tests.chart.kubernetes_schemas import VERSIONS, faults_of
from tests.chart.rendering import CHART, CI_VALUES, helm, needs_helm, render

pytestmark = needs_helm


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem.removesuffix("-values"))
def test_kubernetes_admits_all_objects(values: Path, version: str) -> None:
    manifests = render(files=(values,), kube_version=version)
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
