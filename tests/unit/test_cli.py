"""The command line against a small HTTP server, and what it says when it cannot do its work."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fake_coordinator import SPECULATION, STATUS, FakeCoordinator, running_fake_coordinator

from paceline import __version__
from paceline.cli import terminal
from paceline.cli.api import Answer, ApiError, CoordinatorApi
from paceline.cli.config import ServeSettings
from paceline.cli.main import main


@pytest.fixture
def coordinator() -> Iterator[FakeCoordinator]:
    with running_fake_coordinator() as server:
        yield server


class Result(NamedTuple):
    """How a command ended and what it printed in a pipe."""

    returncode: int
    stdout: str
    stderr: str


Paceline = Callable[..., Result]


@pytest.fixture
def paceline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Paceline:
    """Runs the command in this process; `stdin` is what is typed."""

    def run(*args: str, stdin: str = "") -> Result:
        monkeypatch.setattr("sys.argv", ["paceline", *args])
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return Result(ended.value.code, *capsys.readouterr())

    return run


def test_generate_streams_the_answer_to_stdout_and_its_cost_to_stderr(
    paceline: Paceline,
    coordinator: FakeCoordinator,
) -> None:
    result = paceline("generate", "Hi", "--url", coordinator.url, "--system", "Be kind")
    assert (result.returncode, result.stdout) == (0, "Hello\n")
    figures = [" ".join(line.split()) for line in result.stderr.splitlines()]
    assert "tokens per target pass 1.50" in figures
    assert "acceptance 25% (1 of 4)" in figures
    assert coordinator.bodies == [
        {
            "model": "tiny",
            "messages": [
                {"role": "system", "content": "Be kind"},
                {"role": "user", "content": "Hi"},
            ],
            "max_tokens": 256,
            "temperature": 0.0,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_generate_can_skip_the_chat_template_and_fix_the_drafts(
    paceline: Paceline,
    coordinator: FakeCoordinator,
) -> None:
    result = paceline(
        "generate", "Hi", "--url", coordinator.url, "--raw", "--num-speculative-tokens", "3"
    )
    assert (result.returncode, result.stdout) == (0, "Hello\n")
    assert coordinator.bodies[0]["prompt"] == "Hi"
    assert coordinator.bodies[0]["speculation"] == {"method": "auto", "num_speculative_tokens": 3}


def test_generate_compares_with_plain_decoding_on_a_warm_cache(
    paceline: Paceline,
    coordinator: FakeCoordinator,
) -> None:
    result = paceline("generate", "Hi", "--url", coordinator.url, "--compare", "--temperature", "1")
    assert result.returncode == 0
    assert "The text and all 3 token ids are equal." in result.stderr
    warm, fast, plain = coordinator.bodies
    assert warm["max_tokens"] == 1
    assert plain["speculation"] == {"method": "off"}
    assert {key: fast[key] for key in ("seed", "temperature", "max_tokens")} == {
        key: plain[key] for key in ("seed", "temperature", "max_tokens")
    }


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"plain_pieces": [("Help", [1, 2, 3])]}, "The texts DIFFER"),
        ({"plain_pieces": [("Hello", [1, 2, 4])]}, "the token ids DIFFER"),
        ({"plain_reason": "length"}, "the finish reasons DIFFER: stop, without drafts length"),
    ],
)
def test_generate_fails_when_speculation_changed_the_answer(
    paceline: Paceline,
    coordinator: FakeCoordinator,
    change: dict[str, Any],
    expected: str,
) -> None:
    vars(coordinator).update(change)
    result = paceline("generate", "Hi", "--url", coordinator.url, "--compare")
    assert result.returncode == 1
    assert expected in result.stderr


def test_generate_prints_one_json_document(
    paceline: Paceline,
    coordinator: FakeCoordinator,
) -> None:
    result = paceline("generate", "Hi", "--url", coordinator.url, "--compare", "--json")
    document = json.loads(result.stdout)
    assert document["text"] == document["without_speculation"]["text"] == "Hello"
    assert document["token_ids"] == [1, 2, 3]
    assert (document["finish_reason"], document["equal"]) == ("stop", True)
    assert document["speculative_decoding"] == SPECULATION
    assert document["speedup"] > 0


def test_chat_keeps_the_conversation_until_its_input_ends(
    paceline: Paceline, coordinator: FakeCoordinator
) -> None:
    typed = "Hi\n\n  \nAnd then?\n"
    result = paceline("chat", "--url", coordinator.url, "--max-tokens", "20", stdin=typed)
    assert (result.returncode, result.stdout) == (0, "Hello\nHello\n\n")
    first, second = coordinator.bodies
    assert first["session_id"] == second["session_id"]
    assert second["messages"] == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "And then?"},
    ]


@pytest.fixture
def interrupted_answer(monkeypatch: pytest.MonkeyPatch, coordinator: FakeCoordinator) -> None:
    """The first answer meets a Ctrl-C while it waits for more."""
    coordinator.num_stalls = 1
    write = terminal.write_answer

    def write_and_interrupt(text: str) -> None:
        write(text)
        if text == "lo":
            monkeypatch.setattr(terminal, "write_answer", write)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(terminal, "write_answer", write_and_interrupt)


@pytest.mark.usefixtures("interrupted_answer")
def test_an_interrupt_cuts_an_answer_short_and_the_chat_goes_on(
    paceline: Paceline, coordinator: FakeCoordinator
) -> None:
    typed = "Hi\nGo on\n/exit\n"
    result = paceline("chat", "--url", coordinator.url, "--max-tokens", "20", stdin=typed)
    assert (result.returncode, result.stdout) == (0, "Hello\nHello\n")
    assert result.stderr.splitlines()[0] == "cancelled"
    assert coordinator.bodies[1]["messages"][1] == {"role": "assistant", "content": "Hello"}


@pytest.mark.usefixtures("interrupted_answer")
def test_an_interrupt_ends_generate(paceline: Paceline, coordinator: FakeCoordinator) -> None:
    assert paceline("generate", "Hi", "--url", coordinator.url) == (130, "Hello", "")


def test_chat_goes_on_after_a_refused_turn(
    paceline: Paceline, coordinator: FakeCoordinator
) -> None:
    typed = "Hi\nAgain\n/exit\nnot read"
    result = paceline("chat", "--url", coordinator.url, "--max-tokens", "13", stdin=typed)
    assert result.returncode == 0
    assert "answered 400: max_tokens is 13, expected luck" in result.stderr
    assert [body["messages"] for body in coordinator.bodies] == [
        [{"role": "user", "content": "Hi"}],
        [{"role": "user", "content": "Again"}],
    ]


def test_status_lists_workers_and_acceptance_also_of_a_url_without_a_scheme(
    paceline: Paceline, coordinator: FakeCoordinator
) -> None:
    result = paceline("status", "--url", coordinator.url.removeprefix("http://"))
    assert result.returncode == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == "ready"
    assert "draft 127.0.0.1:7 no answer 3 suffix" in lines
    assert "drafter: suffix with some-head, 5.8 M parameters" in lines
    assert "acceptance: 25% of 4 drafts" in lines
    assert "draft failures: 2 unknown_token" in lines
    as_json = paceline("status", "--url", coordinator.url, "--json")
    assert json.loads(as_json.stdout) == STATUS


def test_an_answer_that_breaks_off_is_an_error(coordinator: FakeCoordinator) -> None:
    coordinator.is_complete = False
    answer = Answer()
    with (
        CoordinatorApi(coordinator.url) as api,
        pytest.raises(ApiError, match="before it was complete"),
    ):
        api.stream("/v1/completions", {"max_tokens": 5}, lambda text: None, answer)
    assert answer.text == "Hello"


def test_version_prints_the_version() -> None:
    command = Path(sys.executable).with_name("paceline")
    result = subprocess.run([command, "version"], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == (f"paceline {__version__}\n", "")


@pytest.mark.parametrize(
    ("args", "environment", "expected"),
    [
        (["serve"], {"PACELINE_HTTP_PROT": "1"}, "did you mean PACELINE_HTTP_PORT?"),
        (["serve", "--dtype", "int3"], {}, "--dtype is 'int3', but should be 'auto', 'float32'"),
        (["serve", "--drafter", "draft-model"], {}, "--draft-model"),
        (["serve", "--drafter", "eagle", "--model", "m"], {}, "--head is required: --drafter is"),
        (["serve", "--drafter", "medusa"], {}, "--head is required: --drafter is medusa"),
        (
            ["serve", "--drafter", "early-exit", "--head", "h", "--exit-layer", "3"],
            {},
            "--exit-layer 3 contradicts --head",
        ),
        (["generate", "x", "--url", "http://h", "--head", "d"], {}, "--head contradicts --url"),
        (["serve", "--config", "/no.toml"], {}, "/no.toml cannot be read"),
        (["generate", "x", "--url", "http://h", "--model", "m"], {}, "--model contradicts --url"),
        (["generate", "x", "--raw", "--system", "s"], {}, "--system contradicts --raw"),
        (["generate", "x", "--compare", "--no-speculation"], {}, "--compare contradicts"),
        (["generate", "x", "--url", "http://127.0.0.1:1"], {}, "no answer from http://127.0.0.1:1"),
        (["generate", "x", "--url", "ftp://h"], {}, "no answer from ftp://h"),
        (["chat", "--no-speculation", "--num-speculative-tokens", "2"], {}, "contradicts"),
        (["status", "--url", "http://127.0.0.1:1"], {}, "is `paceline serve` running there?"),
    ],
)
def test_what_cannot_work_is_one_sentence_and_status_2(
    paceline: Paceline,
    monkeypatch: pytest.MonkeyPatch,
    args: list[str],
    environment: dict[str, str],
    expected: str,
) -> None:
    for key, text in environment.items():
        monkeypatch.setenv(key, text)
    result = paceline(*args)
    assert result.returncode == 2
    assert result.stdout == ""
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_serve_names_a_taken_port_before_it_starts_anything(
    paceline: Paceline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = paceline("serve", "--http-port", "0", "--grpc-port", str(port))
    assert result.returncode == 2
    assert f"--grpc-port is {port}, but that port of 127.0.0.1 cannot be used" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_options_that_cannot_matter_are_named() -> None:
    assert ServeSettings().contradictions() == []
    settings = ServeSettings(
        drafter="none",
        draft_model="m",
        head="h",
        exit_layer=3,
        draft_tree="static",
        draft_replicas=2,
    )
    assert settings.contradictions() == [
        "--draft-model m is not used: --drafter is none, expected draft-model",
        "--head h is not used: --drafter is none, expected hybrid, eagle, medusa or early-exit",
        "--exit-layer 3 is not used: --drafter is none, expected early-exit",
        "--draft-tree static is not used: --drafter is none, expected hybrid, eagle or medusa",
        "--draft-replicas 2 is not used: --drafter is none",
    ]
