"""Questions and arithmetic of the benchmark, against values worked out by hand."""

from math import inf
from pathlib import Path

import pytest

from paceline.cli.bench.figures import (
    acceptance_by_position,
    median_of_buckets,
    percentile,
    speedup,
    speedup_interval,
)
from paceline.cli.bench.prompts import OTHER, Question, read_questions, select
from paceline.errors import InvalidConfig


def write(folder: Path, *lines: str) -> Path:
    path = folder / "prompts"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_spec_bench_lines_give_their_first_turn_and_its_task_group(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"question_id": 81, "category": "writing", "turns": ["Write", "Again"]}',
        "",
        '{"question_id": 161, "category": "translation", "turns": ["Übersetze"], "reference": []}',
    )
    questions = read_questions(path)
    assert questions == [
        Question("81", "writing", "Write"),
        Question("161", "translation", "Übersetze"),
    ]
    assert [question.group for question in questions] == ["mt", "translation"]


def test_all_eight_categories_of_mt_bench_are_one_group() -> None:
    language = ["writing", "roleplay", "extraction", "humanities"]
    science = ["reasoning", "math", "coding", "stem"]
    assert {Question("1", category, "x").group for category in language + science} == {"mt"}
    others = ["translation", "summarization", "qa", "math_reasoning", "rag"]
    assert [Question("1", category, "x").group for category in others] == others


def test_other_files_are_one_group_and_lines_are_their_numbers(tmp_path: Path) -> None:
    questions = read_questions(write(tmp_path, '{"prompt": "a"}', '{"prompt": "b"}'))
    assert questions == [Question("1", "", "a"), Question("2", "", "b")]
    assert {question.group for question in questions} == {OTHER}


def test_a_file_of_plain_text_is_a_question_per_line(tmp_path: Path) -> None:
    questions = read_questions(write(tmp_path, "What is {}?", "", "  Why?  "))
    assert questions == [Question("1", "", "What is {}?"), Question("3", "", "Why?")]


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "bom.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + '{"prompt": "a\u2028b\x85c"}\r\n'.encode())
    assert read_questions(path) == [Question("1", "", "a\u2028b\x85c")]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "are empty"),
        (['{"prompt": "a\\ud800"}'], "line 1: the prompt is"),
        (['{"prompt": ' + "[" * 100_000], "line 1 is not JSON"),
        (['{"prompt": "a"}', "b"], "line 2 is not JSON"),
        (['{"prompt": "a"}', "[1]"], "line 2 is '[1]', expected a JSON object"),
        (['{"question": "a"}'], "line 1 has the keys question, expected `turns` or `prompt`"),
        (['{"turns": []}'], "line 1: the prompt is []"),
        (['{"prompt": ""}'], 'line 1: the prompt is ""'),
        (
            ['{"question_id": 5, "prompt": "a"}', '{"question_id": 5, "prompt": "b"}'],
            "has the question_id 5 2 times",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(
    tmp_path: Path, lines: list[str], expected: str
) -> None:
    with pytest.raises(InvalidConfig) as refused:
        read_questions(write(tmp_path, *lines))
    assert expected in refused.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="nothing.jsonl' cannot be read"):
        read_questions(tmp_path / "nothing.jsonl")


QUESTIONS = [
    *(Question(f"w{i}", "writing", "x") for i in range(3)),
    *(Question(f"s{i}", "stem", "x") for i in range(3)),
    *(Question(f"q{i}", "qa", "x") for i in range(2)),
]


def chosen(names: list[str], limit: int | None) -> list[str]:
    return [question.question_id for question in select(QUESTIONS, names, limit)]


def test_a_limit_takes_questions_of_each_group_at_even_distances() -> None:
    assert chosen([], 2) == ["w0", "s0", "q0", "q1"]
    assert chosen([], 3) == ["w0", "w2", "s1", "q0", "q1"]
    assert chosen([], 100) == chosen([], None) == [q.question_id for q in QUESTIONS]


def test_categories_and_groups_can_be_named() -> None:
    assert chosen(["stem"], None) == ["s0", "s1", "s2"]
    assert chosen(["qa", "mt"], 1) == ["w0", "q0"]
    with pytest.raises(InvalidConfig, match="has 'rag', expected some of mt, qa, stem, writing"):
        chosen(["qa", "rag"], None)


def test_percentiles_are_interpolated() -> None:
    values = [40.0, 10.0, 20.0, 30.0]
    assert [percentile(values, share) for share in (0, 0.5, 1)] == [10, 25, 40]
    assert percentile(values, 0.9) == pytest.approx(37)
    assert percentile([7.0], 0.3) == 7
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_the_median_of_a_histogram_is_interpolated_inside_its_bucket() -> None:
    assert median_of_buckets({0.1: 0, 0.2: 2, 0.4: 6, inf: 8}) == pytest.approx(0.3)
    assert median_of_buckets({0.1: 4, 0.2: 4, inf: 4}) == pytest.approx(0.05)
    assert median_of_buckets({0.1: 1, inf: 4}) == inf
    for empty in ({}, {0.1: 0.0, inf: 0.0}):
        with pytest.raises(ValueError, match="empty histogram"):
            median_of_buckets(empty)


def test_speedup_is_a_ratio_of_mean_rates_and_not_a_mean_of_ratios() -> None:
    # The mean of the ratios would be 2.0; the ratio of the total times 2.14.
    assert speedup(off=[10.0, 40.0], on=[30.0, 40.0]) == pytest.approx(70 / 50)


def test_an_interval_holds_the_value_repeats_with_its_seed_and_keeps_pairs_together() -> None:
    off = [10.0, 11.0, 12.0, 30.0, 31.0]
    on = [15.0, 12.0, 20.0, 33.0, 60.0]
    interval = speedup_interval(off, on, seed=1)
    assert interval is not None
    assert interval.low < speedup(off, on) < interval.high
    assert speedup_interval(off, on, seed=1) == interval
    assert speedup_interval(off, on, seed=2) != interval
    paired = speedup_interval(off, [2 * rate for rate in off], seed=1)
    assert paired == (pytest.approx(2), pytest.approx(2))


def test_a_single_question_has_no_interval() -> None:
    assert speedup_interval([10.0], [20.0], seed=1) is None


def test_acceptance_at_a_position_counts_all_rounds_that_came_so_far() -> None:
    # Ten rounds: 5 accepted nothing, 3 one draft, 2 two drafts.
    assert acceptance_by_position([5, 3, 2]) == [0.5, 0.2]
    assert acceptance_by_position([0]) == acceptance_by_position([]) == []
