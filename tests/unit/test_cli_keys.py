"""Commands show the server the key that they were given, and nobody else."""

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_coordinator import FakeCoordinator, running_fake_coordinator

from paceline.cli.main import main

KEY = "a-key-for-this-test"

Run = Callable[..., object]


@pytest.fixture
def coordinator() -> Iterator[FakeCoordinator]:
    with running_fake_coordinator() as server:
        yield server


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*args: str) -> object:
        monkeypatch.setattr(sys, "argv", ["paceline", *args])
        monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    return run


COMMANDS = {
    "generate": ["generate", "Hi"],
    "chat": ["chat"],
    "status": ["status"],
    "bench": ["bench", "prompts"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_client_takes_a_key_from_a_file_or_the_environment(
    command: str,
    run: Run,
    coordinator: FakeCoordinator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts").write_text("Hello\n")
    (tmp_path / "key").write_text(f"me: {KEY}\n")
    arguments = [*COMMANDS[command], "--url", coordinator.url]
    run(*arguments)
    assert set(coordinator.authorizations) == {None}
    for given, environment in ((["--api-key-file", "key"], ""), ([], KEY)):
        monkeypatch.setenv("PACELINE_API_KEY", environment)
        coordinator.authorizations.clear()
        run(*arguments, *given)
        assert set(coordinator.authorizations) == {f"Bearer {KEY}"}


def test_a_key_without_a_server_to_show_it_to_is_a_mistake(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("generate", "Hi", "--api-key-file", "key", "--model", "table:7") == 2
    assert "--api-key-file is for the server at --url" in capsys.readouterr().err
