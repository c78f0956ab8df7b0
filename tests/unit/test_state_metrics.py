"""The state of the service as Prometheus is shown it."""

from dataclasses import replace

from scraping import Samples, scraped

from coordinator.metrics import Metrics
from coordinator.requests import SpeculativeStats
from coordinator.service_status import ServiceEvents, ServiceStatus, SourceStatus, WorkerStatus

TARGET = WorkerStatus("t:1", "target", True, "", model="m", numerics="0123456789abcdef")
DRAFT = WorkerStatus("d:1", "draft", True, "", drafter="suffix")
STATUS = ServiceStatus(
    ready=True,
    reason="",
    model="m",
    workers=(TARGET, DRAFT),
    num_running=0,
    stats=SpeculativeStats(),
    session_store="redis",
)
AWAY = "redis (unreachable: in memory for now)"


def shown(status: ServiceStatus) -> Samples:
    metrics = Metrics()
    metrics.show(status)
    return scraped(metrics.instruments)


def degraded(status: ServiceStatus) -> dict[str, float]:
    values = shown(status)
    names = ("not_ready", "no_draft", "session_store")
    return {name: values[f"degraded{{reason={name}}}"] for name in names}


def test_workers_are_counted_by_role_and_state_and_never_named() -> None:
    lost = replace(DRAFT, ready=False, reason="it is gone", address="d:2")
    values = shown(replace(STATUS, workers=(TARGET, DRAFT, lost)))
    counts = {
        (role, state): values[f"workers{{role={role},state={state}}}"]
        for role in ("target", "draft")
        for state in ("ready", "not_ready")
    }
    assert counts == {
        ("target", "ready"): 1,
        ("target", "not_ready"): 0,
        ("draft", "ready"): 1,
        ("draft", "not_ready"): 1,
    }
    assert [name for name in values if "d:2" in name or "gone" in name] == []


def test_what_is_missing_is_told_by_name() -> None:
    nothing = {"not_ready": 0, "no_draft": 0, "session_store": 0}
    assert degraded(STATUS) == nothing
    assert degraded(replace(STATUS, ready=False, reason="why")) == {**nothing, "not_ready": 1}
    assert degraded(replace(STATUS, session_store=AWAY)) == {**nothing, "session_store": 1}
    no_draft = replace(STATUS, workers=(TARGET, replace(DRAFT, ready=False, reason="why")))
    assert degraded(no_draft) == {**nothing, "no_draft": 1}
    assert degraded(replace(STATUS, workers=(TARGET,))) == nothing, "none is wanted"


def test_sources_of_workers_show_how_old_their_word_is_and_whether_they_fail() -> None:
    dns = SourceStatus("dns:///drafts:50071", "draft", 1, 0, 2.5, "")
    fixed = SourceStatus("t:1", "target", 1, 0, None, "")
    away = replace(dns, source="k8s:///drafts", problem="it does not answer", heard_s_ago=None)
    values = shown(replace(STATUS, sources=(fixed, dns, away)))
    of_dns, of_fixed, of_away = (
        f"{{role={one.role},source={one.source}}}" for one in (dns, fixed, away)
    )
    assert values[f"discovery_age_seconds{of_dns}"] == 2.5
    failing = [values[f"discovery_failing{one}"] for one in (of_fixed, of_dns, of_away)]
    assert failing == [0, 0, 1]
    assert [
        name for name in values if "age" in name and (of_fixed in name or of_away in name)
    ] == []


def test_what_happened_is_shown_as_it_is_now() -> None:
    metrics = Metrics()
    for number in (1, 2):
        events = ServiceEvents(
            num_lost={"target": number},
            sent_bytes={"target": 10 * number, "draft": number},
            received_bytes={"draft": 3 * number},
            num_moved={"target": number},
            num_numerics_changes=number,
        )
        metrics.show(replace(STATUS, events=events, num_unwritten_records=number))
    values = scraped(metrics.instruments)
    assert values["worker_losses_total{role=target}"] == 2
    assert values["worker_losses_total{role=draft}"] == 0
    assert values["worker_sent_bytes_total{role=target}"] == 20
    assert values["worker_received_bytes_total{role=draft}"] == 6
    assert values["migrations_total{role=target}"] == 2
    assert values["numerics_changes_total"] == 2
    assert values["session_store_unwritten_records"] == 2


def test_a_build_names_the_model_when_it_is_known() -> None:
    (before,) = (name for name in scraped(Metrics().instruments) if name.startswith("build_info"))
    assert "model=,numerics=,service=coordinator" in before
    (after,) = (name for name in shown(STATUS) if name.startswith("build_info"))
    assert "model=m,numerics=0123456789ab,service=coordinator" in after
