"""A real Redis with a replica, and Sentinels that make it the primary when the other is gone."""

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import redis
from ports import HOST, number_of, reserve_port
from redis_server import ManagedRedis
from waiting import SOON_S

SERVICE = "records"
_DOWN_AFTER_MS = 500
"""A busy machine's stutter is no failure."""


class ManagedSentinels:
    """A context manager: a primary, a replica and Sentinels of them, all ready to fail over.

    With `tls` (options of Redis, `tls_cert_file` and so on) they speak nothing else. `password` is
    what the servers ask for, `sentinel_password` what Sentinels do.
    """

    def __init__(
        self,
        num_sentinels: int = 1,
        tls: Mapping[str, str] | None = None,
        password: str = "",
        sentinel_password: str = "",
    ) -> None:
        self._reserved = [reserve_port() for _ in range(2 + num_sentinels)]
        self.primary_port, self.replica_port, *self._ports = map(number_of, self._reserved)
        self._tls = {**tls, "tls_replication": "yes"} if tls else {}
        self._port_option = "tls_port" if tls else "port"
        self._passwords = password, sentinel_password
        options = {
            "bind": HOST,
            "repl_diskless_sync_delay": "0",
            "repl_timeout": "5",
            **self._tls,
            **({"requirepass": password, "masterauth": password} if password else {}),
        }
        self.primary = ManagedRedis(**options, **{self._port_option: self.primary_port})
        options["replicaof"] = f"{HOST} {self.primary_port}"
        self.replica = ManagedRedis(**options, **{self._port_option: self.replica_port})
        self._directory = Path(tempfile.mkdtemp(prefix="sentinels-"))
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        scheme = "rediss" if self._tls else "redis"
        return f"{scheme}+sentinel://{','.join(self.addresses)}/{SERVICE}"

    @property
    def addresses(self) -> list[str]:
        """Those of the Sentinels."""
        return [f"{HOST}:{port}" for port in self._ports]

    def pause_sentinel(self, index: int) -> None:
        """Let it accept connections, but not answer."""
        self._processes[index].send_signal(signal.SIGSTOP)

    def _start_sentinel(self, index: int) -> Callable[[], None]:
        password, own_password = self._passwords
        lines = {
            "bind": HOST,
            "port": "0",
            self._port_option: str(self._ports[index]),
            "dir": str(self._directory),
            **self._tls,
            **({"requirepass": own_password} if own_password else {}),
            "sentinel monitor": f"{SERVICE} {HOST} {self.primary_port} 1",
            "sentinel down-after-milliseconds": f"{SERVICE} {_DOWN_AFTER_MS}",
            "sentinel failover-timeout": f"{SERVICE} 1000",
            **({"sentinel auth-pass": f"{SERVICE} {password}"} if password else {}),
        }
        path = self._directory / f"{index}.conf"
        config = [f"{name.replace('_', '-')} {value}\n" for name, value in lines.items()]
        path.write_text("".join(config))
        argv = [self.primary.binary, str(path), "--sentinel"]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self._processes.append(process)
        return partial(_end, process)

    def _client_of(self, index: int) -> Any:
        options: dict[str, Any] = {"password": self._passwords[1] or None}
        if self._tls:
            options |= {
                "ssl": True,
                "ssl_ca_certs": self._tls["tls_ca_cert_file"],
                "ssl_certfile": self._tls["tls_cert_file"],
                "ssl_keyfile": self._tls["tls_key_file"],
            }
        return redis.Redis(HOST, self._ports[index], **options)

    def _wait_for_sentinel(self, index: int) -> None:
        with self._client_of(index) as sentinel:
            # Else it would look after its servers every ten seconds.
            _wait_for(lambda: sentinel.execute_command("SENTINEL", "DEBUG", "info-period", "100"))
            _wait_for(
                lambda: any(
                    state["flags"] == "slave" and state["master-link-status"] == "ok"
                    for state in sentinel.sentinel_slaves(SERVICE)
                )
            )

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self._directory)
            for reserved in self._reserved:
                stack.enter_context(reserved)
            stack.enter_context(self.primary)
            stack.enter_context(self.replica)
            with self.replica.client() as client:
                _wait_for(lambda: client.info("replication")["master_link_status"] == "up")
            for index in range(len(self._ports)):
                stack.callback(self._start_sentinel(index))
            for index in range(len(self._ports)):
                self._wait_for_sentinel(index)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


def _wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SOON_S
    while True:
        with contextlib.suppress(redis.RedisError):
            if condition():
                return
        assert time.monotonic() < deadline, "Redis or its Sentinels did not get ready"
        time.sleep(0.01)
