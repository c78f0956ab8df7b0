"""The connection to Redis, and the store that a setting asks for.

The only module that imports redis; knows nothing about records. A breaker keeps Redis out of the
way once it does not answer in time, and only `RedisLink.probe` closes it again: a request waits
for Redis at most once in an outage, and then no longer than its budget.
"""

import asyncio
import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any
from urllib.parse import unquote, urlsplit

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster, Sentinel
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from coordinator.memory_store import RECORD_TTL_S, MemoryStore
from coordinator.records import SessionStore
from coordinator.shared_store import Away, SharedStore
from paceline.errors import InvalidConfig

log = logging.getLogger(__name__)

_REQUEST_BUDGET_S = 0.1
_WRITER_BUDGET_S = 1.0
"""For connections and batches: no request waits for them, and catching up takes time."""
_MAX_CONNECTIONS = 16

_PROBE = ("SET", "{paceline:probe}", "", "PX", 1000)
"""Reads would also work on a replica, on a full server and without the right to write."""
_FAILURES = (exceptions.RedisError, exceptions.RedisClusterException, OSError)

Watch = Callable[[str, float, str], None]
"""Told of each call: `ask`, `write` or `probe`, the seconds it took, and the trouble with it in a
word or two, if there was any."""

_Client = Redis | RedisCluster
_Sentinel: Any = Sentinel  # redis has no types for it


async def open_session_store(
    redis_url: str, ttl_s: float = RECORD_TTL_S, watch: Watch = lambda *_: None
) -> SessionStore:
    """The store at this URL, connected if it can be; memory if the URL is empty.

    Raises `InvalidConfig` for a URL that cannot be meant.
    """
    if not redis_url:
        return MemoryStore(ttl_s)
    store = SharedStore(RedisLink(redis_url, watch), ttl_s)
    await store.start()
    return store


class RedisLink:
    """Commands to Redis behind a breaker, which is open until the first `probe` succeeds.

    URLs: `redis://`, `rediss://` (TLS), `unix://`; `redis+cluster://` (any node);
    `redis+sentinel://user:password@sentinel:port,sentinel:port/master/db`, where name and password
    are those of the master; also `rediss+cluster://` and `rediss+sentinel://`.
    """

    def __init__(self, url: str, watch: Watch) -> None:
        self._client, *self._guides = _clients(url)
        self._watch = watch
        self._trouble = "not connected yet"
        self._calls: set[asyncio.Task[Any]] = set()

    @property
    def trouble(self) -> str:
        """Why Redis is not in use now, in a word or two; empty when it is."""
        return self._trouble

    async def ask(self, *command: Any) -> Any:
        """The answer to one command, for a request that waits. Raises `Away`.

        The call itself is never cancelled, which would cost its connection; it times out by itself.
        """
        if self._trouble:
            raise Away
        began = perf_counter()
        call = asyncio.create_task(self._client.execute_command(*command))
        self._calls.add(call)
        call.add_done_callback(self._ended)
        await asyncio.wait((call,), timeout=_REQUEST_BUDGET_S)
        if not call.done():
            raise self._trip("ask", began, TimeoutError("no answer within a request's budget"))
        try:
            reply = call.result()
        except _FAILURES as error:
            raise self._trip("ask", began, error) from error
        self._watch("ask", perf_counter() - began, "")
        return reply

    async def send(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        """The answers to many commands, in one go. Raises `Away` when one of them failed."""
        if self._trouble:
            raise Away
        began = perf_counter()
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        try:
            async with asyncio.timeout(_WRITER_BUDGET_S):
                replies = list(await pipeline.execute(raise_on_error=False))
        except _FAILURES as error:
            raise self._trip("write", began, error) from error
        for reply in replies:
            if isinstance(reply, Exception):
                raise self._trip("write", began, reply) from reply
        self._watch("write", perf_counter() - began, "")
        return replies

    async def probe(self) -> None:
        """Find out whether Redis can be written to, and open or close the breaker."""
        began = perf_counter()
        try:
            async with asyncio.timeout(_WRITER_BUDGET_S):
                await self._client.execute_command(*_PROBE)
        except _FAILURES as error:
            self._trip("probe", began, error)
            return
        self._watch("probe", perf_counter() - began, "")
        if self._trouble:
            log.info("Redis is in use")
        self._trouble = ""

    async def aclose(self) -> None:
        """Close all connections."""
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls)
        for client in (self._client, *self._guides):
            await client.aclose()

    def _ended(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # seen here, since nobody waits any more for a call that was too slow

    def _trip(self, operation: str, began: float, error: BaseException) -> Away:
        trouble = _trouble(error)
        self._watch(operation, perf_counter() - began, trouble)
        if trouble != self._trouble:
            reason = str(error) or "no answer in time"  # a TimeoutError says nothing
            log.warning("Redis: %s (%s); requests go on in memory", trouble, reason)
        self._trouble = trouble
        return Away()


def _trouble(error: BaseException) -> str:
    if isinstance(error.__cause__, exceptions.RedisError):
        error = error.__cause__  # what went wrong while connecting comes as a ConnectionError
    if isinstance(error, exceptions.AuthenticationError):
        return "password refused"
    if isinstance(error, exceptions.NoPermissionError):
        return "permission refused"
    if isinstance(error, exceptions.ResponseError):
        return f"{type(error).__name__}: {error}"[:80].splitlines()[0]
    return "unreachable"


def _clients(url: str) -> list[_Client]:
    """The client for our commands, then those that only tell it where to go."""
    options: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": _WRITER_BUDGET_S,
        "socket_connect_timeout": _WRITER_BUDGET_S,
        "protocol": 2,  # nothing here needs RESP3 and the notifications that come with it
    }
    plain_scheme, _, kind = urlsplit(url).scheme.partition("+")
    plain_url = plain_scheme + url[url.find(":") :]
    try:
        if kind == "sentinel":
            return _sentinel_clients(plain_url, options)
        if kind == "cluster":
            return [RedisCluster.from_url(plain_url, **options)]
        path = urlsplit(plain_url).path.strip("/")
        if kind or (plain_scheme != "unix" and path and not path.isdecimal()):
            raise ValueError("unknown scheme" if kind else f"database {path!r} is not a number")
        pool: Any = BlockingConnectionPool.from_url(
            plain_url, max_connections=_MAX_CONNECTIONS, timeout=_WRITER_BUDGET_S, **options
        )
        pool.make_connection()  # refuses unknown options in the URL; does not connect yet
        return [Redis.from_pool(pool)]
    except (ValueError, TypeError) as error:
        raise InvalidConfig(
            f"redis_url {_without_password(url)!r} cannot be used: {error}. Expected for example "
            "redis://host:6379/0, rediss://…, unix:///path/to/socket, redis+cluster://host:6379 "
            "or redis+sentinel://host:26379,host:26379/master."
        ) from error


def _sentinel_clients(url: str, options: dict[str, Any]) -> list[_Client]:
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss"):
        raise ValueError(f"scheme {parts.scheme!r} has no Sentinel")
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    master, _, database = parts.path.strip("/").partition("/")
    if not master:
        raise ValueError("the master's name is missing")
    addresses = []
    for host in hosts.split(","):
        address = urlsplit(f"//{host}")
        addresses.append((address.hostname or "localhost", address.port or 26379))
    sentinel = _Sentinel(addresses, sentinel_kwargs=options)
    client = sentinel.master_for(
        master,
        db=int(database or 0),
        username=unquote(user) or None,
        password=unquote(password) or None,
        ssl=parts.scheme == "rediss",
        **options,
    )
    return [client, *sentinel.sentinels]


def _without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"{head[: head.find('://') + 3]}…{at}{tail}" if at else url
