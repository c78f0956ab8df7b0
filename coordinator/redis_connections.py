"""What connections to Redis and its Sentinels show and trust, read anew for every connection.

One of the modules that import redis. So passwords and certificates can be replaced while the
process runs; connections that stand are left as they are.
"""

import asyncio
import contextlib
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Any

from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.sentinel import SentinelManagedConnection, SentinelManagedSSLConnection
from redis.credentials import CredentialProvider

from paceline.certificates import Certificates, use
from paceline.followed_files import FollowedFiles


class Login(CredentialProvider):
    """What a connection logs in with: the password as its file has it then."""

    def __init__(self, username: str, password: FollowedFiles[str]) -> None:
        self._username = username
        self._password = password

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        await self._password.look()
        password = self._password.value
        return (self._username, password) if self._username else (password,)


class Tls:
    """The context for the next connection, as the files are now."""

    def __init__(self, files: FollowedFiles[Certificates] | None) -> None:
        self._files = files
        self._shown: Certificates | None = None
        self._context = self.get()

    async def look(self) -> None:
        """Take over what has changed in the files."""
        if self._files is not None:
            await self._files.look()

    def get(self) -> ssl.SSLContext:
        """A new one whenever the files have changed, so that old authorities are forgotten."""
        shown = self._files.value if self._files is not None else Certificates()
        if shown is not self._shown:
            authorities = shown.ca.decode("ascii", "replace") or None
            self._context = ssl.create_default_context(cadata=authorities)
            use(self._context, shown._replace(ca=b""))
            self._shown = shown
        return self._context


class Names:
    """Looks hosts up, one question for each at a time, on threads of its own.

    asyncio does so on the threads on which requests are read: where name servers do not answer,
    every attempt would keep one of them for long. There it comes second, and soon has its answer.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(4, "redis-dns")
        self._asked: dict[str, asyncio.Future[Any]] = {}

    async def look_up(self, host: str) -> None:
        """Return when it is known where that is; raises `OSError`."""
        with contextlib.suppress(ValueError):
            ip_address(host)
            return
        asked = self._asked.get(host)
        if asked is None or asked.done():
            loop = asyncio.get_running_loop()
            asked = loop.run_in_executor(self._threads, socket.getaddrinfo, host, None)
            asked.add_done_callback(_seen)
            self._asked[host] = asked
        await asyncio.wait((asked,))
        asked.result()

    def close(self) -> None:
        """Ask no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _seen(asked: "asyncio.Future[Any]") -> None:
    """Nobody may be waiting any more to be told what went wrong."""
    if not asked.cancelled():
        asked.exception()


class _LooksUp:
    """A connection that looks its host up beforehand."""

    host: Any
    is_connected: Any
    socket_connect_timeout: Any

    def __init__(self, *, names: Names, **options: Any) -> None:
        super().__init__(**options)
        self._names = names

    async def connect_check_health(self, *args: Any, **options: Any) -> None:
        """Where redis-py connects, whoever asks for it."""
        connection: Any = super()
        if not self.is_connected:
            async with asyncio.timeout(self.socket_connect_timeout):
                await self._names.look_up(self.host)
        await connection.connect_check_health(*args, **options)


class _LooksFirst(_LooksUp):
    """A connection over TLS that looks at the files as well."""

    def __init__(self, *, tls: Tls, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context: Any = tls  # in place of redis-py's own, which reads files once

    async def connect_check_health(self, *args: Any, **options: Any) -> None:
        """Where redis-py connects, whoever asks for it."""
        if not self.is_connected:
            await self.ssl_context.look()
        await super().connect_check_health(*args, **options)


class PlainConnection(_LooksUp, Connection):
    """To a server or a Sentinel, in the clear."""


class PlainPrimaryConnection(_LooksUp, SentinelManagedConnection):
    """To the primary that Sentinels name, in the clear."""


class TlsConnection(_LooksFirst, SSLConnection):
    """To a server or a Sentinel."""


class TlsPrimaryConnection(_LooksFirst, SentinelManagedSSLConnection):
    """To the primary that Sentinels name."""
