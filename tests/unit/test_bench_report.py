"""What the benchmark makes of its rows, against values worked out by hand."""

from dataclasses import replace

import pytest

from paceline.cli.bench.measure import Mode, Row
from paceline.cli.bench.report import make_report, questions_answered_otherwise
from paceline.cli.bench.traffic import Traffic, read_traffic


def row(
    question_id: str,
    mode: Mode,
    seconds: float,
    *,
    num_tokens: int = 4,
    group: str = "qa",
    repeat: int = 0,
    text: str = "abcd",
    error: str = "",
) -> Row:
    """A request whose first token came after 0.5 s, and the others together at the end."""
    is_on = mode == "on"
    return Row(
        question_id=question_id,
        category=group,
        group=group,
        mode=mode,
        repeat=repeat,
        error=error,
        completion_tokens=num_tokens,
        seconds=seconds,
        time_to_first_token_s=0.5,
        time_per_token_s=(seconds - 0.5) / (num_tokens - 1) if num_tokens > 1 else None,
        chunks=((0.5, 1), (seconds, num_tokens - 1)),
        speculative_decoding={
            "num_target_passes": 2 if is_on else num_tokens,
            "num_committed_tokens": num_tokens,
            "num_spec_steps": 1 if is_on else 0,
            "num_draft_tokens": 5 if is_on else 0,
            "num_accepted_draft_tokens": 2 if is_on else 0,
            "acceptance_histogram": [0, 0, 1] if is_on else [0],
            "num_proposed_tokens": 6 if is_on else 0,
            "draft_compute_ms": 9.0 if is_on else 0.0,
        },
        text=text,
        token_ids=tuple(text.encode()),
    )


def prompt(question_id: str, seconds: float, group: str = "qa") -> Row:
    return Row(question_id, group, group, "prompt", 0, time_to_first_token_s=seconds)


ROWS = [
    prompt("1", 1.5),
    row("1", "off", 2.0),
    row("1", "on", 1.0),
    row("1", "off", 4.0, repeat=1),
    row("1", "on", 1.0, repeat=1),
    prompt("2", 2.5),
    row("2", "off", 4.0),
    row("2", "on", 2.0),
    row("2", "off", 4.0, repeat=1),
    row("2", "on", 4.0, repeat=1),
]


def test_a_report_has_the_figures_that_follow_from_the_rows() -> None:
    overall = make_report(ROWS, seed=0).overall
    assert overall is not None
    # Question 1: 2 and 1 tokens/s, mean 1.5, against 4. Question 2: 1 against 2 and 1, mean 1.5.
    assert overall.off.tokens_per_s == pytest.approx(1.25)
    assert overall.on.tokens_per_s == pytest.approx(2.75)
    assert overall.speedup == pytest.approx(2.2)
    # The first token takes 1.5 s and 2.5 s instead of 0.5 s: 1 and 2 s more.
    off = ((4 / 3 + 4 / 5) / 2 + 4 / 6) / 2
    on = (4 / 2 + (4 / 4 + 4 / 6) / 2) / 2
    assert overall.speedup_with_prompt == pytest.approx(on / off)
    assert overall.median_prompt_s == 2.0
    assert overall.off.median_time_to_first_token_s == 0.5
    assert overall.off.median_time_per_token_s == pytest.approx(3.5 / 3)
    assert overall.on.median_time_per_token_s == pytest.approx((0.5 + 1.5) / 2 / 3)
    assert overall.on.median_chunk_gap_s == pytest.approx(1.0)
    assert (overall.on.num_target_passes, overall.on.tokens_per_target_pass) == (8, 2.0)
    assert overall.off.tokens_per_target_pass == 1.0
    assert overall.mean_acceptance_length == 3.0
    assert overall.draft_acceptance_rate == pytest.approx(0.4)
    assert overall.acceptance_by_position == [1.0, 1.0]
    assert (overall.num_questions, overall.num_equal) == (2, 2)
    assert overall.draft_ms_per_token == pytest.approx(1.5)


def test_bytes_are_counted_per_token_of_the_answers_with_speculation() -> None:
    rag = [
        prompt("3", 1.0, "rag"),
        row("3", "off", 8.0, group="rag"),
        row("3", "on", 2.0, group="rag"),
    ]
    traffic = {"qa": Traffic(100, 60, 50, 30), "rag": Traffic(4, 4, 2, 10)}
    report = make_report([*ROWS, *rag], seed=0, traffic=traffic)
    qa, other = report.groups
    assert (qa.draft_bytes_per_token, qa.target_bytes_per_token) == (10.0, 5.0)
    assert (other.draft_bytes_per_token, other.target_bytes_per_token) == (2.0, 3.0)
    assert report.overall is not None
    assert report.overall.draft_bytes_per_token == pytest.approx(168 / 20)


def test_traffic_is_summed_over_the_workers_of_a_role() -> None:
    workers = [
        {"role": "draft", "sent_bytes": 1, "received_bytes": 2},
        {"role": "target", "sent_bytes": 4, "received_bytes": 8},
        {"role": "draft", "sent_bytes": 16, "received_bytes": 32},
    ]
    traffic = read_traffic({"workers": workers})
    assert traffic == Traffic(17, 34, 4, 8)
    assert traffic - Traffic(1, 1, 1, 1) + traffic == Traffic(33, 67, 7, 15)


def test_without_proposals_a_drafted_token_has_no_cost() -> None:
    plain = replace(
        row("1", "on", 1.0), speculative_decoding=row("1", "off", 1.0).speculative_decoding
    )
    overall = make_report([prompt("1", 1.0), row("1", "off", 1.0), plain], seed=0).overall
    assert overall is not None
    assert overall.draft_ms_per_token is None


def test_services_that_answer_otherwise_are_found_out_question_by_question() -> None:
    other = [row("1", "on", 1.0, text="abce"), row("2", "on", 1.0)]
    assert questions_answered_otherwise([ROWS, other]) == ["1"]
    assert questions_answered_otherwise([ROWS, ROWS]) == []
    ended = [replace(row("2", "on", 1.0), finish_reason="stop")]
    assert questions_answered_otherwise([ROWS, ended]) == ["2"]
    failed = [row("1", "on", 1.0, text="abce", error="refused")]
    assert questions_answered_otherwise([ROWS, failed]) == []


def test_each_group_is_counted_by_itself() -> None:
    rows = [
        *ROWS,
        prompt("3", 1.0, "rag"),
        row("3", "off", 8.0, group="rag"),
        row("3", "on", 2.0, group="rag"),
    ]
    report = make_report(rows, seed=0)
    assert [(group.group, group.num_questions) for group in report.groups] == [
        ("qa", 2),
        ("rag", 1),
    ]
    assert [group.speedup for group in report.groups] == pytest.approx([2.2, 4.0])
    assert report.overall is not None
    assert report.overall.speedup == pytest.approx((2.75 * 2 + 2) / (1.25 * 2 + 0.5))


def test_a_question_with_a_failed_request_is_in_no_figure() -> None:
    failed = row("3", "on", 0.0, num_tokens=0, error="the server broke off")
    report = make_report([*ROWS, prompt("3", 1.0), row("3", "off", 1.0), failed], seed=0)
    assert report.overall == make_report(ROWS, seed=0).overall
    assert report.failures == [failed]


def test_a_question_that_was_broken_off_is_in_no_figure() -> None:
    report = make_report([*ROWS, prompt("3", 1.0), row("3", "off", 1.0)], seed=0)
    assert report.overall == make_report(ROWS, seed=0).overall
    assert report.failures == []


def test_without_any_whole_question_there_is_no_figure() -> None:
    report = make_report([row("1", "off", 0.0, error="refused")], seed=0)
    assert (report.overall, report.groups, len(report.failures)) == (None, [], 1)


def test_answers_must_be_equal_between_modes_and_between_repeats() -> None:
    different = [prompt("3", 1.0), row("3", "off", 1.0), row("3", "on", 1.0, text="abce")]
    unstable = [
        prompt("4", 1.0),
        row("4", "off", 1.0),
        row("4", "on", 1.0),
        row("4", "off", 1.0, repeat=1, text="bbcd"),
        row("4", "on", 1.0, repeat=1, text="bbcd"),
    ]
    report = make_report([*ROWS, *different, *unstable], seed=0)
    assert report.unequal_question_ids == ["3", "4"]
    assert report.overall is not None
    assert (report.overall.num_equal, report.overall.num_questions) == (2, 4)


def test_throughput_is_all_tokens_over_the_time_in_which_a_mode_ran() -> None:
    busy_s: dict[Mode, float] = {"prompt": 9.0, "off": 8.0, "on": 4.0}
    assert make_report(ROWS, seed=0, busy_s=busy_s).throughput == {"off": 2.0, "on": 4.0}
    assert make_report(ROWS, seed=0).throughput is None
