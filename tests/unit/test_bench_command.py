"""`paceline bench` against a small HTTP server: what it asks, in which order, and how it ends."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_coordinator import SPECULATION, FakeCoordinator, running_fake_coordinator
from typer.testing import CliRunner, Result

from paceline.cli.main import app
from paceline.errors import PacelineError

NUM_WARM_UPS = 2


@pytest.fixture
def coordinator() -> Iterator[FakeCoordinator]:
    with running_fake_coordinator() as server:
        yield server


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"question_id": 1, "category": "writing", "turns": ["one"]},
        {"question_id": 2, "category": "qa", "turns": ["two"]},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def bench(prompts: Path, coordinator: FakeCoordinator, *args: str) -> Result:
    command = ["bench", str(prompts), "--url", coordinator.url, *args]
    return CliRunner().invoke(app, command)


def asked(body: dict[str, Any]) -> tuple[str, str]:
    """A request's prompt, and in which mode it was asked."""
    mode = "prompt" if body["max_tokens"] == 1 else body["speculation"]["method"]
    return body["messages"][0]["content"], mode


def test_modes_take_turns_at_each_question(prompts: Path, coordinator: FakeCoordinator) -> None:
    result = bench(prompts, coordinator, "--repeats", "2")
    assert result.exit_code == 0, result.output
    turns = ["prompt", "off", "auto", "off", "auto"]
    assert [asked(body) for body in coordinator.bodies[NUM_WARM_UPS:]] == [
        *(("one", mode) for mode in turns),
        *(("two", mode) for mode in turns),
    ]
    assert coordinator.bodies[-1] == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "two"}],
        "max_tokens": 128,
        "temperature": 0.0,
        "seed": 0,
        "return_token_ids": True,
        "speculation": {"method": "auto"},
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_with_several_clients_modes_take_turns_at_each_batch(
    tmp_path: Path, coordinator: FakeCoordinator
) -> None:
    path = tmp_path / "nine.txt"
    path.write_text("\n".join(map(str, range(9))))
    result = bench(path, coordinator, "--concurrency", "2", "--json")
    assert result.exit_code == 0, result.output
    modes = [asked(body)[1] for body in coordinator.bodies[NUM_WARM_UPS:]]
    assert modes == [*["prompt"] * 8, *["off"] * 8, *["auto"] * 8, "prompt", "off", "auto"]
    (service,) = json.loads(result.stdout)["services"]
    throughput = service["throughput"]
    assert throughput["off"] > 0
    assert throughput["on"] > 0


def test_what_is_measured_can_be_chosen(prompts: Path, coordinator: FakeCoordinator) -> None:
    chosen = ["--method", "suffix", "--num-speculative-tokens", "3", "--raw"]
    chosen += ["--categories", "qa", "--seed", "4", "--temperature", "0.5"]
    result = bench(prompts, coordinator, *chosen)
    assert result.exit_code == 0, result.output
    off, on = coordinator.bodies[-2:]
    assert (on["prompt"], on["seed"], on["temperature"]) == ("two", 4, 0.5)
    assert on["speculation"] == {"method": "suffix", "num_speculative_tokens": 3}
    assert off == on | {"speculation": {"method": "off"}}


def test_tables_have_a_line_for_each_group_and_one_for_all(
    prompts: Path, coordinator: FakeCoordinator
) -> None:
    result = bench(prompts, coordinator)
    first_words = [line.split()[:2] for line in result.stdout.splitlines() if line.strip()]
    for row in (["mt", "1"], ["qa", "1"], ["overall", "2"]):
        assert row in first_words
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "Texts and token ids are equal in 2 of 2." in result.stderr


def test_the_document_has_each_request_and_how_it_came_about(
    prompts: Path, coordinator: FakeCoordinator, tmp_path: Path
) -> None:
    output = tmp_path / "out.json"
    result = bench(prompts, coordinator, "--output", str(output), "--json")
    document = json.loads(result.stdout)
    assert json.loads(output.read_text()) == document
    (service,) = document["services"]
    assert [group["group"] for group in service["groups"]] == ["mt", "qa"]
    assert service["overall"]["on"]["tokens_per_target_pass"] == 1.5
    assert service["overall"]["acceptance_by_position"] == [1.0, 0.0, 0.0, 0.0]
    assert service["overall"]["draft_ms_per_token"] == 0.4
    assert service["overall"]["draft_bytes_per_token"] == 40
    assert service["server"]["model"] == "tiny"
    assert service["num_draft_parameters"] == 5_800_000
    assert document["machine"]["cores"] >= 1
    assert document["versions"]["paceline"]
    assert document["command"][0] == "paceline"
    rows = service["rows"]
    assert [row["mode"] for row in rows[:4]] == ["prompt", "off", "on", "prompt"]
    assert rows[2]["speculative_decoding"] == SPECULATION
    assert (rows[2]["text"], rows[2]["token_ids"]) == ("Hello", [1, 2, 3])
    assert [count for _, count in rows[2]["chunks"]] == [1, 2]
    first, last = (seconds for seconds, _ in rows[2]["chunks"])
    assert rows[2]["time_per_token_s"] == pytest.approx((last - first) / 2)


def test_of_several_services_each_is_asked_in_turns(
    prompts: Path, coordinator: FakeCoordinator
) -> None:
    with running_fake_coordinator() as other:
        other.drafter = "eagle"
        chosen = ["--url", other.url, "--json"]
        result = bench(prompts, coordinator, *chosen)
        assert result.exit_code == 0, result.output
        turns = [
            (question, mode) for question in ("one", "two") for mode in ("prompt", "off", "auto")
        ]
        for server in (coordinator, other):
            assert [asked(body) for body in server.bodies[NUM_WARM_UPS:]] == turns
        document = json.loads(result.stdout)
        assert [s["name"] for s in document["services"]] == ["suffix", "eagle"]
        assert document["differing_question_ids"] == []

        other.pieces = other.plain_pieces = [("Help", [1, 2, 3])]
        result = bench(prompts, coordinator, *chosen)
        assert result.exit_code == 1
        assert "The answers DIFFER: questions 1, 2." in result.stderr


def test_markdown_has_a_table_for_each_group_with_a_line_for_each_service(
    prompts: Path, coordinator: FakeCoordinator
) -> None:
    with running_fake_coordinator() as other:
        result = bench(prompts, coordinator, "--url", other.url, "--markdown", "--temperature", "1")
    assert result.exit_code == 0, result.output
    first, *lines = result.stdout.splitlines()
    assert "tiny, temperature 1, seed 0, up to 128 tokens, 1 at a time, off and on" in first
    assert [line for line in lines if line.startswith("**")] == ["**mt**", "**qa**", "**overall**"]
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    assert [row[0] for row in rows[:2]] == [
        f"`suffix at {server.url}`" for server in (coordinator, other)
    ]
    assert len(rows) == 6
    assert rows[0][1:5] == ["5.8 M", "0.40", "1.50", "100 0 0 0"]
    assert rows[0][9:] == ["40", "0", "1/1"]


def test_a_refused_request_is_shown_and_gives_status_1(
    prompts: Path, coordinator: FakeCoordinator
) -> None:
    result = bench(prompts, coordinator, "--max-tokens", "13")
    assert result.exit_code == 1
    assert "Question 1 (off) failed:" in result.stderr
    assert "answered 400: max_tokens is 13, expected luck" in result.stderr
    assert "4 requests failed" in result.stderr


def test_chunks_that_do_not_add_up_to_the_usage_are_a_failure(
    prompts: Path, coordinator: FakeCoordinator
) -> None:
    coordinator.pieces = [("Hel", [1]), ("lo", [2])]
    result = bench(prompts, coordinator)
    assert result.exit_code == 1
    assert "the chunks hold 2 token ids, but usage.completion_tokens is 3" in result.stderr


@pytest.mark.parametrize(
    "change",
    [
        {"plain_pieces": [("Help", [1, 2, 3])]},
        {"plain_pieces": [("Hello", [1, 2, 4])]},
        {"plain_reason": "length"},
    ],
)
def test_an_answer_that_speculation_changed_gives_status_1(
    prompts: Path, coordinator: FakeCoordinator, change: dict[str, Any]
) -> None:
    vars(coordinator).update(change)
    result = bench(prompts, coordinator)
    assert result.exit_code == 1
    assert "The answers DIFFER between requests: questions 1, 2." in result.stderr


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--method", "off"], "--method is 'off'"),
        (["--categories", "rag"], "--categories has 'rag', expected some of mt, qa, writing"),
        (["--output", "/nowhere/out.json"], "--output /nowhere/out.json cannot be written"),
        (["--model", "m"], "--model contradicts --url"),
        (["--drafter", "self"], "--drafter contradicts --url"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_asked(
    prompts: Path, coordinator: FakeCoordinator, args: list[str], expected: str
) -> None:
    result = bench(prompts, coordinator, *args)
    assert isinstance(result.exception, PacelineError)
    assert expected in result.exception.message
    assert coordinator.bodies == []


def test_prompts_that_are_not_there_are_named_once(coordinator: FakeCoordinator) -> None:
    result = bench(Path("nope.jsonl"), coordinator)
    assert isinstance(result.exception, PacelineError)
    assert result.exception.message.endswith(
        "nope.jsonl' cannot be read: No such file or directory"
    )


def test_figures_are_shown_also_when_they_cannot_be_kept(
    prompts: Path, coordinator: FakeCoordinator
) -> None:
    result = bench(prompts, coordinator, "--output", "/dev/full")
    assert result.exit_code == 1
    assert "--output /dev/full cannot be written: No space left on device" in result.output
    assert "tokens/s" in result.output
    assert "Texts and token ids are equal in 2 of 2." in result.output


def test_answers_that_say_nothing_of_their_rounds_are_failures(
    prompts: Path, coordinator: FakeCoordinator
) -> None:
    coordinator.speculation = {}
    result = bench(prompts, coordinator)
    assert result.exit_code == 1
    assert "failed: the answer says nothing of its rounds" in result.output
