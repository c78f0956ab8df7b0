"""The commands over the real services, with the table model instead of a large one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from aligned_head import aligned_head, save_target
from plain_http import plain_get
from serve_process import ServeProcess
from undisturbed import drafted_answer
from waiting import SOON_S


def paceline(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "paceline.cli.main", *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    folder = tmp_path_factory.mktemp("run")
    with ServeProcess("--model", "table:7", "--drafter", "self", run_folder=folder) as served:
        served.wait_ready()
        yield served


def test_a_request_works_as_soon_as_the_addresses_are_printed(served: ServeProcess) -> None:
    assert plain_get(f"{served.url}/ready").status_code == 200
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        answer = client.completions.create(
            model="table:7", prompt="Once", max_tokens=8, extra_body={"ignore_eos": True}
        )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


def test_generate_shows_that_speculation_changes_nothing(served: ServeProcess) -> None:
    def compared() -> Any:
        result = paceline(
            "generate", "Once", "--url", served.url, "--max-tokens", "40", "--compare", "--json"
        )
        assert result.returncode == 0, result.stderr
        document = json.loads(result.stdout)
        assert document["equal"] is True
        assert len(document["token_ids"]) == document["completion_tokens"] == 40
        return document

    document = drafted_answer(compared)
    assert document["without_speculation"]["speculative_decoding"]["num_draft_tokens"] == 0


def test_status_shows_the_workers_and_what_was_accepted(served: ServeProcess) -> None:
    arguments = ("generate", "Once", "--url", served.url, "--max-tokens", "20", "--json")
    drafted_answer(lambda: json.loads(paceline(*arguments).stdout))
    result = paceline("status", "--url", served.url, "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert sorted(worker["role"] for worker in found["workers"]) == ["draft", "target"]
    assert found["stats"]["num_accepted_draft_tokens"] > 0
    shown = paceline("status", "--url", served.url)
    assert shown.stdout.startswith("ready\n")
    assert "table:7" in shown.stdout


def test_generate_starts_a_server_itself_and_ends_it(tmp_path: Path) -> None:
    result = paceline("generate", "Once", "--model", "table:7", "--max-tokens", "12", "--raw")
    assert result.returncode == 0, result.stderr
    assert "coordinator is ready" in result.stderr
    assert "tokens per target pass" in result.stderr


def test_a_draft_that_is_killed_costs_speed_and_not_the_service(tmp_path: Path) -> None:
    options = ("--model", "table:7", "--draft-replicas", "2", "--drafter", "self")
    with ServeProcess(*options, run_folder=tmp_path) as served:
        served.wait_ready()
        arguments = ("generate", "Once", "--url", served.url, "--max-tokens", "30", "--json")
        before = json.loads(paceline(*arguments).stdout)
        for pid in served.pids("draft_service"):
            os.kill(pid, signal.SIGKILL)
            assert "signal SIGKILL" in served.read_message(" ended (")
        after = json.loads(paceline(*arguments).stdout)
        assert after["token_ids"] == before["token_ids"]
        assert after["speculative_decoding"]["num_draft_tokens"] == 0
        served.process.send_signal(signal.SIGINT)
        assert served.end()[0] == 0


def test_a_head_drafts_for_the_model_that_it_was_made_for(tmp_path: Path) -> None:
    model, head = save_target(tmp_path / "model"), aligned_head().write(tmp_path / "head")
    options = ["--model", str(model), "--drafter", "eagle", "--head", str(head)]
    with ServeProcess(*options, run_folder=tmp_path) as served:
        served.wait_ready()
        body = {"model": model.name, "prompt": "x", "max_tokens": 40, "temperature": 0}

        def ask(**speculation: Any) -> Any:
            asked = {**body, "ignore_eos": True, "speculation": speculation}
            answer = httpx.post(f"{served.url}/v1/completions", json=asked, timeout=SOON_S)
            assert answer.status_code == 200, answer.text
            return answer.json()

        drafted = drafted_answer(lambda: ask(method="eagle", num_speculative_tokens=4), 20)
        assert drafted["choices"] == ask(method="off")["choices"]
    stats = drafted["metrics"]["speculative_decoding"]
    assert stats["num_accepted_draft_tokens"] == stats["num_draft_tokens"]


def test_a_redis_that_is_not_there_is_told_at_the_start(tmp_path: Path) -> None:
    options = ("--model", "table:7", "--redis-url", "redis://127.0.0.1:1/0")
    with ServeProcess(*options, run_folder=tmp_path) as served:
        served.wait_ready()
        assert "coordinator's memory" in served.read_message("--redis-url cannot be reached")
