"""Clients of redis-py for a URL: a server, the primary that Sentinels name, or a cluster.

One of the modules that import redis. Knows nothing about records, and connects to nothing by
itself.
"""

import re
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException

from coordinator.redis_access import RedisAccess, option_of, split_url
from coordinator.redis_connections import (
    Login,
    Names,
    PlainConnection,
    PlainPrimaryConnection,
    Tls,
    TlsConnection,
    TlsPrimaryConnection,
)
from coordinator.redis_sentinels import Sentinels
from paceline.errors import InvalidConfig

_MAX_CONNECTIONS = 16
_SENTINEL_PORT = 26379

Client = Redis | RedisCluster


class RedisClients:
    """The client for our commands, and whatever tells it where to go."""

    def __init__(self, url: str, access: RedisAccess, timeout_s: float) -> None:
        """Raises `InvalidConfig` for a URL that cannot be meant; does not connect yet."""
        self._sentinels: Sentinels | None = None
        self._names = Names()
        options: dict[str, Any] = {
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "protocol": 2,  # nothing here needs RESP3 and the notifications that come with it
            "driver_info": None,  # else every connection asks for one more right
        }
        try:
            scheme, _, kind = split_url(url).scheme.partition("+")
            plain_url = scheme + url[url.find(":") :]
            parts = split_url(plain_url)
            if "ssl_" in parts.query:
                raise ValueError("options of TLS are settings of their own: redis_tls_…")
            if kind == "sentinel":
                self.client = self._of_sentinels(parts, access, options)
            elif kind == "cluster":
                self.client = _of_cluster(plain_url, access, options, self._names)
            elif kind:
                raise ValueError("unknown scheme")
            else:
                self.client = _of_server(plain_url, access, options, self._names)
        except (ValueError, TypeError, RedisClusterException) as error:
            raise InvalidConfig(
                f"{option_of('redis_url')} is {_without_password(url)!r}, which cannot be used: "
                f"{error}. Expected for example redis://host:6379/0, rediss://…, "
                "unix:///path/to/socket, redis+cluster://host:6379 or "
                "redis+sentinel://host:26379,host:26379/service."
            ) from None

    async def start_anew(self) -> None:
        """Let the next commands find their way again, instead of using connections there are.

        Behind the name of a service there may be another server now, and the one that was it,
        demoted to a replica, goes on answering that it cannot be written to.
        """
        if isinstance(self.client, Redis):
            await self.client.connection_pool.disconnect(inuse_connections=False)

    async def aclose(self) -> None:
        """Close all connections."""
        await self.client.aclose()
        if self._sentinels is not None:
            await self._sentinels.aclose()
        self._names.close()

    def _of_sentinels(
        self, parts: SplitResult, access: RedisAccess, options: dict[str, Any]
    ) -> Client:
        if parts.scheme not in ("redis", "rediss"):
            raise ValueError(f"scheme {parts.scheme!r} has no Sentinel")
        if parts.query:
            raise ValueError(f"{parts.query!r} means nothing to Sentinels")
        login, _, hosts = parts.netloc.rpartition("@")
        username, _, password = login.partition(":")
        service, _, database = parts.path.strip("/").partition("/")
        if not service:
            raise ValueError("the service's name is missing behind the addresses of Sentinels")
        addresses = []
        for host in hosts.split(","):
            address = urlsplit(f"//{host}")
            addresses.append((address.hostname or "localhost", address.port or _SENTINEL_PORT))
        to_sentinel = options | _connection(parts.scheme, access, self._names)
        to_primary = dict(to_sentinel)
        if access.sentinel_password is not None:
            to_sentinel["credential_provider"] = Login("", access.sentinel_password)
        self._sentinels = Sentinels(addresses, to_sentinel)
        is_plain = parts.scheme == "redis"
        to_primary |= {
            "connection_class": PlainPrimaryConnection if is_plain else TlsPrimaryConnection,
            "max_connections": _MAX_CONNECTIONS,
            "timeout": options["socket_timeout"],
            "db": _database(database),
            "username": unquote(username) or None,
            "password": unquote(password) or None,
        }
        return self._sentinels.primary(unquote(service), to_primary | _login(access))


def _of_server(url: str, access: RedisAccess, options: dict[str, Any], names: Names) -> Client:
    parts = urlsplit(url)
    if parts.scheme != "unix":
        _database(parts.path.strip("/"))
    pool: Any = BlockingConnectionPool.from_url(
        url,
        max_connections=_MAX_CONNECTIONS,
        timeout=options["socket_timeout"],
        **_login(access),
        **options,
    )
    if parts.scheme != "unix":
        pool.connection_kwargs |= _connection(parts.scheme, access, names)
        pool.connection_class = pool.connection_kwargs.pop("connection_class")
    pool.make_connection()  # refuses unknown options in the URL; does not connect yet
    return Redis.from_pool(pool)


def _of_cluster(
    url: str, access: RedisAccess, options: dict[str, Any], names: Names
) -> RedisCluster:
    client = RedisCluster.from_url(url, **_login(access), **options)
    # Its constructor knows no connections but its own; nodes that it hears of get these.
    client.connection_kwargs |= (connection := _connection(urlsplit(url).scheme, access, names))
    for node in client.startup_nodes:
        node.connection_class = connection["connection_class"]
        node.connection_kwargs |= connection
        del node.connection_kwargs["connection_class"]
    return client


def _connection(scheme: str, access: RedisAccess, names: Names) -> dict[str, Any]:
    """The kind of connections over TCP, and what these take beside those of redis-py."""
    if scheme == "rediss":
        return {"connection_class": TlsConnection, "names": names, "tls": Tls(access.certificates)}
    return {"connection_class": PlainConnection, "names": names}


def _login(access: RedisAccess) -> dict[str, Any]:
    if access.password is None:
        return {}
    return {"credential_provider": Login(access.username, access.password)}


def _database(text: str) -> int:
    if text and not text.isdecimal():
        raise ValueError(f"database {text!r} is not a number")
    return int(text or 0)


def _without_password(url: str) -> str:
    head, at, tail = re.sub(r"(password=)[^&]*", r"\1…", url).rpartition("@")
    return f"{head[: head.find('://') + 3]}…{at}{tail}" if at else tail
