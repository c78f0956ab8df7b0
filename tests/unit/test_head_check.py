"""Heads that cannot work are named before any process is started."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline.cli.bench.services import wanted_servers
from paceline.cli.main import app
from paceline.cli.options import ServerOptions
from paceline.errors import InvalidConfig

SIZES = {"hidden_size": 16, "vocab_size": 40}
MODEL = {"model_type": "llama", "num_hidden_layers": 3, **SIZES}
EAGLE = {
    **SIZES,
    "draft_vocab_size": 8,
    "intermediate_size": 24,
    "num_attention_heads": 4,
}
MEDUSA = {"model_type": "medusa", "num_heads": 3, **SIZES}
EXIT = {"model_type": "early_exit", "exit_layer": 1, "target": "m", **SIZES}

Made = Callable[..., str]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Makes a directory with a config, and an empty file for weights."""

    def make(name: str, config: dict[str, Any], weights: str = "model.safetensors") -> str:
        directory = tmp_path / name
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config))
        (directory / weights).touch()
        return str(directory)

    return make


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service begins with a directory for its logs."""

    def fail(**_: object) -> str:
        pytest.fail("a service was started")

    monkeypatch.setattr("tempfile.mkdtemp", fail)


def refusal(*args: str) -> str:
    """What the command says instead of starting anything."""
    result = CliRunner().invoke(app, args)
    assert isinstance(result.exception, InvalidConfig), result.output
    return result.exception.message


def refusals(tmp_path: Path, *options: str) -> list[str]:
    """The same of every command that may start a service."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Hi")
    commands: list[list[str]] = [["serve"], ["generate", "Hi"], ["chat"], ["bench", str(prompts)]]
    return [refusal(*command, *options) for command in commands]


def test_a_directory_that_is_missing_or_no_head_is_named(made: Made, tmp_path: Path) -> None:
    model = made("m", MODEL)
    for said in refusals(tmp_path, "--model", model, "--head", "/nowhere"):
        assert "head '/nowhere': its config.json cannot be read (No such file" in said
    for said in refusals(tmp_path, "--model", model, "--head", model):
        assert "num_hidden_layers in its config.json is 3; expected 1" in said


@pytest.mark.parametrize(
    ("drafter", "config", "expected"),
    [
        ("eagle", MEDUSA, "is for the drafter medusa; expected one for eagle"),
        ("medusa", EAGLE, "is for the drafter eagle; expected one for medusa"),
        ("hybrid", EXIT, "is for the drafter early-exit; expected one for eagle or medusa"),
        ("auto", EXIT, "is for the drafter early-exit; expected one for eagle or medusa"),
        ("early-exit", EAGLE, "is for the drafter eagle; expected one for early-exit"),
    ],
)
def test_a_head_for_another_drafter_is_named(
    made: Made, drafter: str, config: dict[str, Any], expected: str
) -> None:
    said = refusal("serve", "--model", "m", "--drafter", drafter, "--head", made("h", config))
    assert f"{expected}: --drafter is {drafter}" in said


@pytest.mark.parametrize(
    ("drafter", "config", "key"),
    [
        ("eagle", {**EAGLE, "target_hidden_size": 24}, "target_hidden_size is 24; expected 16"),
        ("medusa", {**MEDUSA, "vocab_size": 41}, "vocab_size is 41; expected 40"),
        ("early-exit", {**EXIT, "hidden_size": 8}, "hidden_size is 8; expected 16"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_head_for_another_model_is_named(
    made: Made, drafter: str, config: dict[str, Any], key: str, nested: bool
) -> None:
    model = made("m", {"text_config": MODEL} if nested else MODEL)
    head = made("h", config)
    assert key in refusal("serve", "--model", model, "--drafter", drafter, "--head", head)


def test_the_bundled_model_is_known_too(made: Made) -> None:
    assert "expected 576, the hidden_size of the model" in refusal(
        "serve", "--head", made("h", EAGLE)
    )


def test_weights_that_are_missing_or_a_pickle_are_named(made: Made) -> None:
    none, pickle = made("none", EAGLE, "x"), made("pickle", EAGLE, "pytorch_model.bin")
    assert "has no model.safetensors" in refusal("serve", "--model", "m", "--head", none)
    assert "its weights are a pickle" in refusal("serve", "--model", "m", "--head", pickle)


def test_the_table_model_feeds_no_head(made: Made) -> None:
    said = refusal("serve", "--model", "table:7", "--head", made("h", EAGLE))
    assert "the table model 'table:7' has no hidden states" in said


@pytest.mark.parametrize(
    ("config", "kind"), [(EAGLE, "eagle"), (MEDUSA, "medusa"), (EXIT, "early-exit")]
)
def test_a_head_in_the_place_of_a_model_is_named(
    made: Made, tmp_path: Path, config: dict[str, Any], kind: str
) -> None:
    head = made("h", config)
    expected = f"{head!r} is the directory of a head for the drafter {kind}, not of a model"
    for option in ("--model", "--draft-model"):
        for said in refusals(
            tmp_path, "--drafter", "draft-model", "--draft-model", "d", option, head
        ):
            assert f"{option} {expected}; expected it in --head" in said


def test_each_drafter_of_a_benchmark_gets_the_first_head_that_is_for_it(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    eagle, medusa, trained_exit = made("e", EAGLE), made("d", MEDUSA), made("x", EXIT)
    drafters = ["suffix", "medusa", "eagle", "hybrid", "early-exit"]
    wanted = wanted_servers(drafters, [eagle, medusa, trained_exit], ServerOptions({"model": "m"}))
    assert [one.texts.get("head") for one in wanted] == [None, medusa, eagle, eagle, trained_exit]
    assert [one.texts["drafter"] for one in wanted] == drafters
    assert f"hybrid runs the head {eagle}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("drafters", "config", "expected"),
    [
        (["suffix", "eagle"], MEDUSA, "--head is required: --drafter is eagle"),
        (["suffix", "self"], MEDUSA, "would not be run: --drafter is suffix, self"),
        (["suffix", "sufix"], EAGLE, "--drafter is 'sufix', but should be"),
        (["early-exit", "suffix"], EAGLE, "is for the drafter eagle and would not be run"),
    ],
)
def test_a_benchmark_names_a_drafter_without_head_and_a_head_without_drafter(
    made: Made, tmp_path: Path, drafters: list[str], config: dict[str, Any], expected: str
) -> None:
    head, prompts = made("h", config), tmp_path / "prompts.txt"
    prompts.write_text("Hi")
    options = [part for drafter in drafters for part in ("--drafter", drafter)]
    said = refusal("bench", str(prompts), "--model", "m", *options, "--head", head)
    assert expected in said


def test_a_head_is_not_for_a_server_that_runs_already(made: Made, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("Hi")
    options = ["--url", "http://h", "--head", made("h", EAGLE)]
    said = refusal("bench", str(tmp_path / "prompts.txt"), *options)
    assert "--head contradicts --url" in said
