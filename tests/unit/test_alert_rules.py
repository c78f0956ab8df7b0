"""Each alert fires for what it is about, and none fires for a healthy service."""

import json
from pathlib import Path

import yaml
from prometheus_server import needs_prometheus, promtool

ROOT = Path(__file__).resolve().parents[2]
RULES = sorted((ROOT / "helm" / "rules").glob("*.yaml"))
RUNBOOK = ROOT / "docs" / "observability.md"

Series = dict[str, str]
"""A series without prefix and namespace, and its values as promtool writes them: one a minute."""


def buckets(name: str, low: str, high: str, slow: str, fast: str) -> Series:
    """A histogram: of so many observations some are below `high`, of which some below `low`."""
    return {
        f'{name}_bucket{{pod="c",le="{low}"}}': fast,
        f'{name}_bucket{{pod="c",le="{high}"}}': slow,
        f'{name}_bucket{{pod="c",le="+Inf"}}': slow,
    }


HEALTHY: Series = {
    'degraded{pod="c",reason="not_ready"}': "0x40",
    'degraded{pod="c",reason="no_draft"}': "0x40",
    'worker_losses_total{pod="c",role="target"}': "3x40",
    'discovery_failing{pod="c",role="draft",source="dns:///d:1"}': "0x40",
    'requests_refused_total{pod="c",reason="overloaded"}': "0+1x40",
    'requests_refused_total{pod="c",reason="invalid"}': "0+600x40",
    'request_success_total{pod="c",finished_reason="stop"}': "0+60x40",
    **buckets("request_queue_time_seconds", "2.56", "10.24", "0+60x40", "0+60x40"),
    'spec_decode_num_draft_tokens_total{pod="c",drafter="d"}': "0+600x40",
    'spec_decode_num_accepted_tokens_total{pod="c",drafter="d"}': "0+300x40",
    'spec_decode_num_drafts_total{pod="c",drafter="d"}': "0+100x40",
    'draft_failures_total{pod="c",drafter="d",reason="malformed"}': "0x40",
    'draft_failures_total{pod="c",drafter="d",reason="timeout"}': "0+1x40",
    'worker_rounds_total{pod="t",role="target",outcome="failed"}': "0x40",
    'num_preemptions_total{pod="t",role="target"}': "0+1x40",
    'session_store_degraded{pod="c"}': "0x40",
    'numerics_changes_total{pod="c"}': "0x40",
    **buckets("event_loop_lag_seconds", "0.1", "1.0", "0+240x40", "0+240x40"),
}
AILING: dict[str, tuple[Series, str]] = {
    "PacelineNotReady": ({'degraded{pod="c",reason="not_ready"}': "1x40"}, "2m"),
    "PacelineNoDraft": ({'degraded{pod="c",reason="no_draft"}': "1x40"}, "6m"),
    "PacelineWorkersLost": ({'worker_losses_total{pod="c",role="target"}': "0+1x40"}, "12m"),
    "PacelineDiscoveryFails": (
        {'discovery_failing{pod="c",role="draft",source="dns:///d:1"}': "1x40"},
        "8m",
    ),
    "PacelineRequestsTurnedAway": (
        {'requests_refused_total{pod="c",reason="overloaded"}': "0+60x40"},
        "12m",
    ),
    "PacelineQueueSlow": (
        buckets("request_queue_time_seconds", "2.56", "10.24", "0+60x40", "0x40"),
        "20m",
    ),
    "PacelineDraftUseless": (
        {'spec_decode_num_accepted_tokens_total{pod="c",drafter="d"}': "0+6x40"},
        "25m",
    ),
    "PacelineDraftFaulty": (
        {'draft_failures_total{pod="c",drafter="d",reason="malformed"}': "0+1x40"},
        "12m",
    ),
    "PacelineDraftLate": (
        {'draft_failures_total{pod="c",drafter="d",reason="timeout"}': "0+100x40"},
        "20m",
    ),
    "PacelinePassesFail": (
        {'worker_rounds_total{pod="t",role="target",outcome="failed"}': "0+1x40"},
        "10m",
    ),
    "PacelineKvFull": ({'num_preemptions_total{pod="t",role="target"}': "0+60x40"}, "20m"),
    "PacelineRedisAway": ({'session_store_degraded{pod="c"}': "1x40"}, "5m"),
    "PacelineNumericsChanged": ({'numerics_changes_total{pod="c"}': "0x5 1x35"}, "8m"),
    "PacelineEventLoopLate": (
        buckets("event_loop_lag_seconds", "0.1", "1.0", "0+240x40", "0x40"),
        "12m",
    ),
}


def alerts() -> dict[str, dict[str, object]]:
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    rules = [rule for group in groups for rule in group["rules"]]
    return {rule["alert"]: rule for rule in rules if "alert" in rule}


def case(name: str, ailing: Series, when: str) -> dict[str, object]:
    """That of all alerts those of this name fire, or none for an empty one."""
    expected = [{"labels": f'{{alertname="{name}"}}', "value": 1}] if name else []
    return {
        "interval": "1m",
        "name": name or "healthy",
        "input_series": [
            {"series": f"paceline_{series}".replace("{", '{namespace="n",', 1), "values": values}
            for series, values in {**HEALTHY, **ailing}.items()
        ],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": when,
                "exp_samples": expected,
            }
        ],
    }


@needs_prometheus
def test_each_alert_fires_for_what_it_is_about_and_no_other(tmp_path: Path) -> None:
    cases = [case(name, *ailing) for name, ailing in AILING.items()]
    cases += [case("", {}, when) for when in ("5m", "39m")]
    tests = {"rule_files": [str(path) for path in RULES], "tests": cases}
    file = tmp_path / "tests.yaml"
    file.write_text(json.dumps(tests))
    promtool("check", "rules", *RULES)
    promtool("test", "rules", file)


def test_each_alert_is_tried_and_has_a_summary_and_an_entry_in_the_runbook() -> None:
    found = alerts()
    assert set(found) == set(AILING)
    headings = {
        line.removeprefix("#### ").lower()
        for line in RUNBOOK.read_text().splitlines()
        if line.startswith("#### ")
    }
    for name, rule in found.items():
        annotations = rule["annotations"]
        assert isinstance(annotations, dict)
        assert str(annotations["summary"]).endswith(".")
        assert annotations["runbook"] == f"docs/observability.md#{name.lower()}"
        assert name.lower() in headings
        assert set(rule["labels"]) == {"severity"}  # type: ignore[call-overload]
        assert "for" in rule
