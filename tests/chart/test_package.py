"""The chart as a whole: what is in its package, how its files and names are."""

import tarfile
from pathlib import Path

import pytest
import yaml

from paceline import __version__
from tests.chart.rendering import CHART, LOADER, helm, needs_helm, render

MAX_LINES = 300


def test_the_charts_version_of_the_application_is_that_of_the_code() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    assert "dependencies" not in chart and not (CHART / "crds").exists()


def test_no_template_is_longer_than_one_can_read_at_once() -> None:
    files = [path for path in (CHART / "templates").rglob("*") if path.is_file()]
    assert [path for path in files if len(path.read_text().splitlines()) > MAX_LINES] == []


@needs_helm
def test_the_package_renders_the_same_and_has_nothing_that_makes_or_tests_it(
    tmp_path: Path,
) -> None:
    helm("package", CHART, "--destination", tmp_path)
    (package,) = tmp_path.glob("paceline-*.tgz")
    with tarfile.open(package) as tar:
        names = {name.removeprefix("paceline/") for name in tar.getnames()}
    assert {"values.schema.json", "README.md", "templates/NOTES.txt"} <= names
    assert [name for name in names if name.endswith(".py")] == ["files/smoke.py"]
    assert [name for name in names if name.startswith("ci/")] == []
    options = ("--namespace", "demo", "--kube-version", "1.30.0")
    text = helm("template", "paceline", package, *options)
    assert [item for item in yaml.load_all(text, LOADER) if item] == render()


@needs_helm
@pytest.mark.parametrize(
    "release", ["a", "x" * 53, "my-paceline-in-europe-west-for-the-team-of-search"]
)
def test_names_are_short_enough_whatever_the_release_is_called(release: str) -> None:
    values = {
        "drafts": {"pool-of-a-draft": {}},
        "target": {"tensorParallelSize": 2, "groupKind": "StatefulSet", "replicas": 10},
    }
    for item in render(values, release=release):
        # Kubernetes puts a hash of ten characters behind the name of a StatefulSet, for a label.
        room = 52 if item["kind"] == "StatefulSet" else 63
        assert len(item["metadata"]["name"]) <= room
        for value in item["metadata"]["labels"].values():
            assert len(value) <= 63
