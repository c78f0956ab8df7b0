"""Settings from file, environment and options."""

from pathlib import Path
from typing import Literal

import pytest

from paceline.config import (
    Count,
    Port,
    Settings,
    child_environment,
    describe_settings,
    load_settings,
)
from paceline.errors import InvalidConfig
from paceline.workers.discovery.source_names import SourceName


class Sample(Settings):
    """A worker."""

    port: Port = 5000
    """Port to listen on,
    100% free."""

    mode: Literal["fast", "slow"] = "fast"
    """How."""

    peers: tuple[SourceName, ...] = ()
    """Who."""

    max_len: Count | None = None
    """How long."""


class Strict(Settings):
    """Has a setting without a default."""

    model: str
    """Which."""


@pytest.fixture(autouse=True)
def no_inherited_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACELINE_CONFIG_FILE", raising=False)


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "paceline.toml"
    path.write_text(text)
    return str(path)


def test_options_win_over_environment_over_file_over_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings(Sample, []) == Sample()
    path = write(tmp_path, 'port = 1\nmode = "slow"\nmax_len = 7\npeers = ["a:1"]')
    monkeypatch.setenv("PACELINE_CONFIG_FILE", path)
    monkeypatch.setenv("PACELINE_PORT", "2")
    monkeypatch.setenv("PACELINE_MAX_LEN", "8")
    settings = load_settings(Sample, ["--port", "3"])
    assert settings == Sample(port=3, mode="slow", max_len=8, peers=("a:1",))


def test_the_config_option_wins_over_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CONFIG_FILE", "/nowhere.toml")
    assert load_settings(Sample, ["--config", write(tmp_path, "port = 4")]).port == 4


def test_lists_are_comma_separated_and_empty_text_unsets_an_optional_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PACELINE_PEERS", "a:1, [::1]:2,")
    monkeypatch.setenv("PACELINE_MAX_LEN", "")
    assert load_settings(Sample, []) == Sample(peers=("a:1", "[::1]:2"))
    assert load_settings(Sample, ["--peers="]).peers == ()


@pytest.mark.parametrize(
    ("environment", "argv", "file", "expected"),
    [
        ({"PACELINE_PROT": "1"}, [], "", "PACELINE_PROT; did you mean PACELINE_PORT?"),
        ({"PACELINE_FOO": "1"}, [], "", "variable PACELINE_FOO; known are PACELINE_PORT, "),
        ({"PACELINE_API_KEY": "k"}, [], "", "clients show; a service accepts the keys in PACELINE"),
        ({}, ["--mod", "slow"], "", "unknown option --mod; did you mean --mode?"),
        ({}, ["loose"], "", "unknown option loose"),
        ({}, [], "prt = 1", "prt; did you mean port?"),
        ({}, [], "[port]\na = 1", "port in {path} is {{'a': 1}}, but should be a valid integer"),
        ({}, [], "port =", "{path} is not valid TOML"),
        ({"PACELINE_PORT": "x"}, [], "", "PACELINE_PORT is 'x', but should be a valid integer"),
        ({"PACELINE_PORT": ""}, [], "", "PACELINE_PORT is '', but should be a valid integer"),
        ({}, ["--port", "65536"], "", "--port is '65536', but should be less than or equal"),
        ({}, ["--mode", "mid"], "", "--mode is 'mid', but should be 'fast' or 'slow'"),
        ({}, ["--max-len", "0"], "", "--max-len is '0', but should be greater than or equal to 1"),
        ({}, ["--peers", "a"], "", "--peers is 'a', but should be host:port"),
        ({"PACELINE_CONFIG_FILE": "/no.toml"}, [], "", "/no.toml cannot be read: No such file"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_was_expected(
    environment: dict[str, str],
    argv: list[str],
    file: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write(tmp_path, file)
    for key, value in ({"PACELINE_CONFIG_FILE": path} | environment).items():
        monkeypatch.setenv(key, value)
    with pytest.raises(InvalidConfig) as caught:
        load_settings(Sample, argv)
    assert expected.format(path=path) in caught.value.message


def test_a_required_setting_that_is_missing_is_named() -> None:
    with pytest.raises(InvalidConfig, match=r"--model \(PACELINE_MODEL\) is required"):
        load_settings(Strict, [])


def test_every_wrong_value_is_reported_at_once() -> None:
    with pytest.raises(InvalidConfig, match=r"--port is .*; --mode is "):
        load_settings(Sample, ["--port", "x", "--mode", "y"])


def test_help_shows_each_option_with_its_meaning_and_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        load_settings(Sample, ["--help"], "python -m sample")
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("usage: python -m sample [-h]")
    assert "--port integer Port to listen on, 100% free. (default: 5000)" in text
    assert "--mode fast|slow How. (default: fast)" in text


def test_the_description_of_a_setting_names_option_variable_type_and_default() -> None:
    port, _, peers, max_len = describe_settings(Sample)
    assert (port.option, port.key, port.expected) == ("--port", "PACELINE_PORT", "integer")
    assert (port.default, port.description) == ("5000", "Port to listen on, 100% free.")
    assert (peers.expected, max_len.option, max_len.expected) == ("text,…", "--max-len", "integer")


def test_a_child_gets_exactly_its_own_settings_and_reads_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PACELINE_HTTP_PORT", "1")
    monkeypatch.setenv("OTHER", "kept")
    settings = Sample(port=7, peers=("a:1", "b:2"), max_len=3)
    environment = child_environment(
        {"port": 7, "peers": ("a:1", "b:2"), "mode": None, "max_len": 3}, {"OMP_NUM_THREADS": "1"}
    )
    assert environment["OTHER"] == "kept"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert {key for key in environment if key.startswith("PACELINE_")} == {
        "PACELINE_PORT",
        "PACELINE_PEERS",
        "PACELINE_MAX_LEN",
    }
    monkeypatch.delenv("PACELINE_HTTP_PORT")
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    assert load_settings(Sample, []) == settings
