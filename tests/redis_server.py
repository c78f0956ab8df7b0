"""A real Redis server that a test may stop, kill and start again at the same address."""

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import redis

from paceline.cli.embedded_redis import START_TIMEOUT_S, NoRedis, find_redis


class ManagedRedis:
    """A context manager: the server runs inside, and is gone behind it. `binary`: found if None."""

    def __init__(self, binary: Path | None = None) -> None:
        # Not pytest's directory, whose paths are too long for a socket.
        self._directory = Path(tempfile.mkdtemp(prefix="redis-"))
        server = find_redis(self._directory, binary)
        assert not isinstance(server, NoRedis), server.reason
        self._server = server
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self._server.url

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._server.argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._server.answers():
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
        return redis.Redis.from_url(self.url)

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
