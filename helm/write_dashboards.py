"""Writes the Grafana dashboards, `helm/dashboards/*.json`, of the panels beside this file.

All have one shape: the variables `datasource`, `namespace`, `model` and `pod`, each narrowing the
next; rows of panels with unit and description. The model narrows the pods, so that no panel needs
a join. Every expression is evaluated by tests/e2e/test_prometheus.py. `make format` runs this.
"""

import json
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

from panels import Panel, Rows
from request_panels import OVERVIEW, SPECULATION
from worker_panels import REDIS_AND_GRPC, WORKERS

FOLDER = Path(__file__).parent / "dashboards"
SCHEMA_VERSION = 41
DASHBOARDS: dict[str, tuple[str, Rows]] = {
    "overview": ("Paceline / Overview", OVERVIEW),
    "speculation": ("Paceline / Speculation", SPECULATION),
    "workers": ("Paceline / Workers", WORKERS),
    "redis-and-grpc": ("Paceline / Redis and gRPC", REDIS_AND_GRPC),
}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard(name: str) -> dict[str, Any]:
    """One dashboard as Grafana reads it."""
    title, rows = DASHBOARDS[name]
    return {
        "uid": f"paceline-{name}",
        "title": title,
        "tags": ["paceline"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [
            {
                "type": "dashboards",
                "title": "Paceline",
                "tags": ["paceline"],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": list(_variables())},
        "panels": list(_panels(rows)),
    }


def _variables() -> Iterable[dict[str, Any]]:
    yield {
        "name": "datasource",
        "type": "datasource",
        "query": "prometheus",
        "label": "Data source",
    }
    chosen = ""
    # Who has no model, as a drafter that copies or a coordinator without a target, is of each.
    for name, empty in (("namespace", ""), ("model", "|"), ("pod", "")):
        query = f"label_values(paceline_build_info{{{chosen}}}, {name})"
        yield {
            "name": name,
            "type": "query",
            "label": name.capitalize(),
            "datasource": SOURCE,
            "query": {"query": query, "refId": name},
            "definition": query,
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            # Also matches where there is no such label, outside of Kubernetes.
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }
        chosen += f'{"," if chosen else ""}{name}=~"${name}{empty}"'


def _panels(rows: Rows) -> Iterable[dict[str, Any]]:
    number, top = count(1), 0
    for title, panels in rows.items():
        yield {
            "id": next(number),
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": 24, "h": 1},
            "panels": [],
        }
        per_line = 3 if len(panels) % 3 == 0 else 4
        for index, panel in enumerate(panels):
            place = {
                "x": index % per_line * (24 // per_line),
                "y": top + 1 + index // per_line * 8,
                "w": 24 // per_line,
                "h": 8,
            }
            yield _panel(panel, next(number), place)
        top += 1 + -(-len(panels) // per_line) * 8


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": legend,
                "exemplar": "_bucket" in expression,
            }
            for index, (legend, expression) in enumerate(panel.expressions.items())
        ],
    }


def as_text(name: str) -> str:
    """A dashboard as its file has it."""
    return json.dumps(dashboard(name), indent=2) + "\n"


if __name__ == "__main__":
    for name in DASHBOARDS:
        (FOLDER / f"{name}.json").write_text(as_text(name))
