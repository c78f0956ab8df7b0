"""What is asked of Prometheus: queries of the dashboards and rules, until all have answers."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from observed import soon
from prometheus_server import ManagedPrometheus

ROOT = Path(__file__).resolve().parents[2]
RULES = sorted((ROOT / "helm" / "rules").glob("*.yaml"))
DASHBOARDS = sorted((ROOT / "helm" / "dashboards").glob("*.json"))
ONLY_WHEN_BROKEN = ("paceline_draft_failures_total", "paceline_session_store_errors_total")
"""Their labels are known when something has failed."""
NOT_HERE = "paceline_discovery_age_seconds"
"""Of fixed addresses there is none."""
ALL: Mapping[str, str] = {}
"""Nothing chosen."""


def queries(path: Path, chosen: Mapping[str, str] = ALL) -> list[str]:
    """Of the panels and variables of a dashboard, as Grafana would fill them in: with what is
    chosen of its variables, else with all."""
    dashboard = json.loads(path.read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    variables = [
        one["definition"] for one in dashboard["templating"]["list"] if "definition" in one
    ]
    for selector, label in re.findall(r"label_values\((.+), (\w+)\)", "\n".join(variables)):
        found.append(f"count by ({label}) ({selector})")
    filled = [expression.replace("$__rate_interval", "1m") for expression in found]
    return [re.sub(r"\$(\w+)", lambda match: chosen.get(match[1], ".*"), one) for one in filled]


def rules() -> list[dict[str, Any]]:
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def without_limits(expression: str) -> str:
    """An alert's expression that has a value also while all is well."""
    return re.sub(r"(==|<|>)\s*[\d.]+", r"\1 bool 0", expression)


def is_broken(expression: str) -> bool:
    """Whether it has an answer only when something has failed."""
    return any(name in expression for name in ONLY_WHEN_BROKEN)


async def until_answered(prometheus: ManagedPrometheus, expressions: list[str]) -> None:
    """Return when each has a number; fails with those that get none."""
    missing = list(expressions)

    async def is_complete() -> bool:
        missing[:] = [one for one in missing if not has_number(prometheus.query(one))]
        return not missing

    try:
        await soon(is_complete, "every query has an answer")
    except AssertionError as error:
        raise AssertionError("\n".join(missing)) from error


def has_number(found: list[dict[str, Any]]) -> bool:
    return any(math.isfinite(float(series["value"][1])) for series in found)
