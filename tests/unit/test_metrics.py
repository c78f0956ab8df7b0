"""What Prometheus is told."""

from prometheus_client.parser import text_string_to_metric_families

from coordinator.decode_loop import Committed, ProposeOutcome
from coordinator.metrics import Metrics
from paceline.rounds import NO_DRAFTS, RoundTiming


def scraped(metrics: Metrics) -> dict[str, float]:
    """Name with labels, and value, as a scrape reads them."""
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        sample.name + "".join(f"{{{label}={value}}}" for label, value in sample.labels.items()): (
            sample.value
        )
        for family in families
        for sample in family.samples
    }


def test_passes_with_and_without_drafts_are_told_apart() -> None:
    metrics = Metrics()
    metrics.pass_committed(0, 0, 1)
    metrics.pass_committed(4, 2, 3)
    metrics.pass_committed(3, 0, 1)
    values = scraped(metrics)
    assert values["paceline_target_passes_total"] == 3
    assert values["paceline_target_tokens_total"] == 5
    assert values["paceline_spec_decode_num_drafts_total"] == 2
    assert values["paceline_spec_decode_num_draft_tokens_total"] == 7
    assert values["paceline_spec_decode_num_accepted_tokens_total"] == 2
    per_position = "paceline_spec_decode_num_accepted_tokens_per_pos_total{position=%d}"
    assert [values.get(per_position % position) for position in range(3)] == [1, 1, None]


def test_an_answer_is_counted_from_admission_to_its_end() -> None:
    metrics = Metrics()
    request = metrics.request_started(7)
    assert scraped(metrics)["paceline_num_requests_running"] == 1
    request.tokens_committed(0)
    assert scraped(metrics)["paceline_time_to_first_token_seconds_count"] == 0
    request.tokens_committed(3)
    request.tokens_committed(2)
    request.finished("length")
    values = scraped(metrics)
    assert values["paceline_num_requests_running"] == 0
    assert values["paceline_prompt_tokens_total"] == 7
    assert values["paceline_generation_tokens_total"] == 5
    assert values["paceline_request_success_total{finished_reason=length}"] == 1
    for histogram in ("time_to_first_token", "time_per_output_token", "e2e_request_latency"):
        assert values[f"paceline_{histogram}_seconds_count"] == 1
    assert values["paceline_time_per_output_token_seconds_sum"] < 1


def test_times_per_token_are_those_of_single_choices() -> None:
    metrics = Metrics()
    request = metrics.request_started(7)
    for choice in (0, 1, 0, 1, 2):
        request.tokens_committed(1, choice)
    request.finished("stop")
    values = scraped(metrics)
    assert values["paceline_generation_tokens_total"] == 5
    assert values["paceline_time_per_output_token_seconds_count"] == 2
    for histogram in ("time_to_first_token", "e2e_request_latency"):
        assert values[f"paceline_{histogram}_seconds_count"] == 1


def test_an_answer_cut_short_gives_no_latency() -> None:
    metrics = Metrics()
    request = metrics.request_started(1)
    request.tokens_committed(1)
    request.finished(None)
    values = scraped(metrics)
    assert values["paceline_request_success_total{finished_reason=abort}"] == 1
    assert values["paceline_e2e_request_latency_seconds_count"] == 0
    assert values["paceline_num_requests_running"] == 0


def test_what_was_proposed_is_counted_with_what_it_took() -> None:
    metrics = Metrics()
    metrics.proposed(3, 0.25)
    metrics.proposed(0, 0.5)
    values = scraped(metrics)
    assert values["paceline_spec_decode_num_proposed_tokens_total"] == 3
    assert values["paceline_spec_decode_draft_compute_seconds_total"] == 0.75


def test_traffic_is_shown_as_it_is_now() -> None:
    metrics = Metrics()
    assert "paceline_worker_sent_bytes_total{role=draft}" not in scraped(metrics)
    metrics.show_traffic({"draft": (1, 2), "target": (4, 8)})
    metrics.show_traffic({"draft": (3, 2), "target": (4, 9)})
    values = scraped(metrics)
    totals = [
        values[f"paceline_worker_{way}_bytes_total{{role={role}}}"]
        for role in ("draft", "target")
        for way in ("sent", "received")
    ]
    assert totals == [3, 2, 4, 9]


def test_two_coordinators_in_one_process_do_not_share_counts() -> None:
    one, other = Metrics(), Metrics()
    one.draft_failed("timeout")
    assert scraped(one)["paceline_draft_failures_total{reason=timeout}"] == 1
    assert "paceline_draft_failures_total{reason=timeout}" not in scraped(other)


def test_what_a_round_took_beside_computing_is_counted_to_a_tenth_of_a_millisecond() -> None:
    propose = ProposeOutcome(NO_DRAFTS, 0.003, RoundTiming(queue_us=100, compute_us=2000))
    committed = Committed(
        token_ids=(1,),
        num_draft_tokens=0,
        num_accepted_tokens=0,
        timing=RoundTiming(queue_us=200, compute_us=40_000),
        elapsed_s=0.041,
        propose=propose,
        since_last_s=0.04325,
    )
    metrics = Metrics()
    metrics.round_overhead.observe(committed.overhead_s)
    values = scraped(metrics)
    assert values["paceline_round_overhead_seconds_bucket{le=0.0012}"] == 0
    assert values["paceline_round_overhead_seconds_bucket{le=0.0013}"] == 1
