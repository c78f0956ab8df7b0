"""The dashboards and rules are well formed, and every metric that they name exists."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from instruments import all_instruments

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "helm"))

import write_dashboards  # noqa: E402

FOLDER = ROOT / "helm" / "dashboards"
RULES = sorted((ROOT / "helm" / "rules").glob("*.yaml"))
NAMES = sorted(write_dashboards.DASHBOARDS)
METRIC = re.compile(r"\bpaceline_\w+")


def panels(name: str) -> list[dict[str, Any]]:
    dashboard = json.loads((FOLDER / f"{name}.json").read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    """Of all dashboards and rules."""
    found = [t["expr"] for name in NAMES for panel in panels(name) for t in panel["targets"]]
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return found + [rule["expr"] for group in groups for rule in group["rules"]]


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_is_what_its_panels_say(name: str) -> None:
    written = (FOLDER / f"{name}.json").read_text()
    assert written == write_dashboards.as_text(name), "run `make format`"
    assert {path.stem for path in FOLDER.glob("*.json")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_works_in_any_grafana(name: str) -> None:
    dashboard = json.loads((FOLDER / f"{name}.json").read_text())
    assert dashboard["uid"] == f"paceline-{name}"
    assert dashboard["schemaVersion"] >= 39
    variables = [variable["name"] for variable in dashboard["templating"]["list"]]
    assert variables == ["datasource", "namespace", "model", "pod"]
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels(name):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        for target in (panel, *panel["targets"]):
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            assert 'pod=~"$pod"' in target["expr"], panel["title"]


def test_every_metric_that_is_named_exists() -> None:
    known: set[str] = set()
    for one in all_instruments():
        is_histogram = one.kind == "histogram"
        suffixes = ("_bucket", "_sum", "_count") if is_histogram else ("",)
        known |= {one.name + suffix for suffix in suffixes}
    named = {name for query in queries() for name in METRIC.findall(query)}
    assert len(named) > 40
    assert named - known == set()


def test_quantiles_are_of_sums_by_bucket() -> None:
    for query in queries():
        if "histogram_quantile" in query:
            assert re.search(r"histogram_quantile\([\d.]+, ?sum by \(le\b", query), query
        assert query.count("(") == query.count(")")
