"""What Prometheus is told of requests and rounds."""

import asyncio
from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from scraping import Samples, scraped, total

from coordinator.decode_loop import Committed, ProposeOutcome
from coordinator.metrics import MAX_POSITIONS, Metrics
from paceline.errors import InvalidRequest, Overloaded
from paceline.metrics import MAX_LABEL_VALUES
from paceline.rounds import NO_DRAFTS, Drafts, RoundTiming

PROPOSED = ProposeOutcome(
    Drafts((1, 2, 3, 4)), 0.003, RoundTiming(queue_us=100, compute_us=2000), drafter="suffix"
)
COMMITTED = Committed(
    token_ids=(1,),
    num_draft_tokens=0,
    num_accepted_tokens=0,
    timing=RoundTiming(queue_us=200, compute_us=40_000),
    elapsed_s=0.041,
    propose=None,
    since_last_s=0.04325,
)


def values_of(metrics: Metrics) -> Samples:
    return scraped(metrics.instruments)


def checked(num_drafts: int, num_accepted: int, propose: ProposeOutcome = PROPOSED) -> Committed:
    """A pass that checked drafts."""
    return replace(
        COMMITTED,
        token_ids=tuple(range(num_accepted + 1)),
        num_draft_tokens=num_drafts,
        num_accepted_tokens=num_accepted,
        propose=propose,
    )


def test_passes_with_and_without_drafts_are_told_apart() -> None:
    metrics = Metrics()
    for committed in (COMMITTED, checked(4, 2), checked(3, 0)):
        metrics.round_committed(committed)
    values = values_of(metrics)
    assert values["target_passes_total"] == 3
    assert values["target_tokens_total"] == 5
    assert values["spec_decode_num_drafts_total{drafter=suffix}"] == 2
    assert values["spec_decode_num_draft_tokens_total{drafter=suffix}"] == 7
    assert values["spec_decode_num_accepted_tokens_total{drafter=suffix}"] == 2
    per_position = "spec_decode_num_accepted_tokens_per_pos_total{drafter=suffix,position=%d}"
    assert [values.get(per_position % position) for position in range(3)] == [1, 1, None]


def test_drafters_are_told_apart_and_predictions_are_one_that_proposes_nothing() -> None:
    metrics = Metrics()
    metrics.round_committed(checked(2, 1))
    predicted = replace(PROPOSED, drafter="prediction")
    metrics.round_committed(checked(3, 3, predicted))
    values = values_of(metrics)
    accepted = "spec_decode_num_accepted_tokens_total{drafter=%s}"
    proposed = "spec_decode_num_proposed_tokens_total{drafter=%s}"
    assert [values[accepted % name] for name in ("suffix", "prediction")] == [1, 3]
    assert [values[proposed % name] for name in ("suffix", "prediction")] == [4, 0]
    assert values["spec_decode_draft_compute_seconds_total{drafter=suffix}"] == 0.002


def test_labels_stay_few_whatever_workers_say() -> None:
    metrics = Metrics()
    for number in range(50):
        named = replace(PROPOSED, drafter=f"drafter-{number}", failure="timeout")
        metrics.round_committed(checked(10_000, 10_000, named))
        metrics.store_called("ask", 0.1, f"ResponseError: number {number}")
        metrics.store_called("ask", 0.1, f"trouble {number}")
    values = values_of(metrics)
    drafters = [name for name in values if name.startswith("spec_decode_num_drafts_total")]
    assert len(drafters) == MAX_LABEL_VALUES + 1
    assert values["spec_decode_num_drafts_total{drafter=other}"] == 50 - MAX_LABEL_VALUES
    assert total(values, "spec_decode_num_drafts_total") == 50
    places = [name for name in values if "per_pos" in name]
    assert len(places) == len(drafters) * MAX_POSITIONS
    assert values["session_store_errors_total{reason=ResponseError}"] == 50
    troubles = [name for name in values if name.startswith("session_store_errors_total")]
    assert len(troubles) == MAX_LABEL_VALUES + 1


async def test_an_answer_is_counted_from_admission_to_its_end() -> None:
    metrics = Metrics()
    request = metrics.request_started(7)
    async with request.turn(asyncio.Semaphore(1)):
        assert values_of(metrics)["num_requests_running"] == 1
        request.tokens_committed(0)
        assert values_of(metrics)["time_to_first_token_seconds_count"] == 0
        request.tokens_committed(3)
        request.tokens_committed(2)
    request.finished("length")
    values = values_of(metrics)
    assert values["num_requests_running"] == 0
    assert values["prompt_tokens_total"] == 7
    assert values["generation_tokens_total"] == 5
    assert values["request_success_total{finished_reason=length}"] == 1
    for histogram in (
        "time_to_first_token",
        "time_per_output_token",
        "e2e_request_latency",
        "request_queue_time",
    ):
        assert values[f"{histogram}_seconds_count"] == 1
    assert values["time_per_output_token_seconds_sum"] < 1


async def test_who_waits_for_a_place_is_counted_until_it_leaves_or_gets_one() -> None:
    metrics = Metrics()
    places = asyncio.Semaphore(1)
    entered = asyncio.Event()

    async def take() -> None:
        async with metrics.request_started(1).turn(places):
            entered.set()
            await asyncio.Event().wait()

    def counts() -> tuple[float, float]:
        values = values_of(metrics)
        return values["num_requests_running"], values["num_requests_waiting"]

    first, second, third = (asyncio.create_task(take()) for _ in range(3))
    await entered.wait()
    assert counts() == (1, 2)
    second.cancel()
    await asyncio.wait((second,))
    assert counts() == (1, 1)
    entered.clear()
    first.cancel()
    await entered.wait()
    assert counts() == (1, 0)
    third.cancel()
    await asyncio.wait((first, third))
    assert counts() == (0, 0)
    assert values_of(metrics)["request_queue_time_seconds_count"] == 2


def test_times_per_token_are_those_of_single_choices() -> None:
    metrics = Metrics()
    request = metrics.request_started(7)
    for choice in (0, 1, 0, 1, 2):
        request.tokens_committed(1, choice)
    request.finished("stop")
    values = values_of(metrics)
    assert values["generation_tokens_total"] == 5
    assert values["time_per_output_token_seconds_count"] == 2
    for histogram in ("time_to_first_token", "e2e_request_latency"):
        assert values[f"{histogram}_seconds_count"] == 1


def test_an_answer_cut_short_gives_no_latency() -> None:
    metrics = Metrics()
    request = metrics.request_started(1)
    request.tokens_committed(1)
    request.finished(None)
    values = values_of(metrics)
    assert values["request_success_total{finished_reason=abort}"] == 1
    assert values["e2e_request_latency_seconds_count"] == 0


def test_requests_that_are_turned_away_are_counted_by_why() -> None:
    metrics = Metrics()
    for error in (Overloaded("full"), InvalidRequest("wrong"), Overloaded("full")):
        with pytest.raises(type(error)), metrics.admission():
            raise error
    with metrics.admission():
        pass
    values = values_of(metrics)
    reasons = ("overloaded", "invalid", "unavailable", "not_found")
    assert [values[f"requests_refused_total{{reason={reason}}}"] for reason in reasons] == [
        *(2, 1, 0, 0)
    ]


def test_two_coordinators_in_one_process_do_not_share_counts() -> None:
    one, other = Metrics(), Metrics()
    one.round_committed(checked(1, 1, replace(PROPOSED, failure="timeout")))
    failures = "draft_failures_total{drafter=suffix,reason=timeout}"
    assert values_of(one)[failures] == 1
    assert failures not in values_of(other)


def test_the_parts_of_a_round_are_all_of_its_time() -> None:
    metrics = Metrics()
    metrics.round_committed(replace(COMMITTED, propose=PROPOSED))
    values = values_of(metrics)
    parts = {
        part: values[f"round_part_seconds_sum{{part={part}}}"]
        for part in ("draft_queue", "draft_compute", "target_queue", "target_compute", "rest")
    }
    assert parts == pytest.approx(
        {
            "draft_queue": 0.0001,
            "draft_compute": 0.002,
            "target_queue": 0.0002,
            "target_compute": 0.04,
            "rest": 0.00095,
        }
    )
    assert sum(parts.values()) == pytest.approx(COMMITTED.since_last_s)


def test_what_a_round_took_beside_computing_is_counted_to_a_tenth_of_a_millisecond() -> None:
    metrics = Metrics()
    metrics.round_committed(replace(COMMITTED, propose=replace(PROPOSED, drafts=NO_DRAFTS)))
    values = values_of(metrics)
    assert values["round_overhead_seconds_bucket{le=0.0012}"] == 0
    assert values["round_overhead_seconds_bucket{le=0.0013}"] == 1


def test_times_of_requests_whose_trace_is_recorded_name_it() -> None:
    from prometheus_client.openmetrics.exposition import generate_latest as openmetrics

    metrics = Metrics()
    for trace_id in ("", "0af7651916cd43dd8448eb211c80319c"):
        request = metrics.request_started(1, trace_id)
        request.tokens_committed(2)
        request.tokens_committed(2)
        request.finished("stop")
    exemplar = '# {trace_id="0af7651916cd43dd8448eb211c80319c"} '
    lines = openmetrics(metrics.instruments.registry).decode().splitlines()
    named = {line.partition("_bucket")[0] for line in lines if exemplar in line}
    assert named == {
        "paceline_time_to_first_token_seconds",
        "paceline_time_per_output_token_seconds",
        "paceline_e2e_request_latency_seconds",
    }
    assert b"trace_id" not in generate_latest(metrics.instruments.registry)
