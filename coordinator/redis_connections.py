"""What connections to Redis and its Sentinels show and trust, read anew for every connection.

One of the modules that import redis. So passwords and certificates can be replaced while the
process runs; connections that stand are left as they are.
"""

import ssl
from typing import Any

from redis.asyncio.connection import SSLConnection
from redis.asyncio.sentinel import SentinelManagedSSLConnection
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


class _LooksFirst:
    """A connection over TLS that looks at the files whenever it connects."""

    def __init__(self, *, tls: Tls, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context: Any = tls  # in place of redis-py's own, which reads files once

    async def connect_check_health(self, *args: Any, **options: Any) -> None:
        """Where redis-py connects, whoever asks for it."""
        connection: Any = super()
        await self.ssl_context.look()
        await connection.connect_check_health(*args, **options)


class TlsConnection(_LooksFirst, SSLConnection):
    """To a server, or a Sentinel."""


class SentinelTlsConnection(_LooksFirst, SentinelManagedSSLConnection):
    """To the primary that Sentinels name."""
