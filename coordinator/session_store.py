"""The connection to Redis, and the store that a setting asks for.

Knows nothing about records. A request waits for Redis at most once in an outage, and then no longer
than its budget: once Redis does not answer in time, requests are kept from it until what is written
behind them is answered in time again, and when that fails too, nothing but probes is sent to it.
"""

import asyncio
import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any

from coordinator.memory_store import RECORD_TTL_S, MemoryStore
from coordinator.records import SessionStore
from coordinator.redis_access import PLAIN, RedisAccess
from coordinator.redis_clients import RedisClients
from coordinator.redis_troubles import FAILURES, reason_of, trouble_of
from coordinator.shared_store import Away, SharedStore

log = logging.getLogger(__name__)

_REQUEST_BUDGET_S = 0.1
_WRITER_BUDGET_S = 1.0
"""For connections and batches: no request waits for them, and catching up takes time."""

_TELL_AGAIN_S = 60.0
"""When trouble that goes on is logged again."""

_SLOW = "slow"
_PROBE = ("SET", "{paceline:probe}", "", "PX", 1000)
"""Reads would also work on a replica, on a full server and without the right to write."""

Watch = Callable[[str, float, str], None]
"""Told of each call: `ask`, `write` or `probe`, the seconds it took, and the trouble with it in a
word or two, if there was any."""


async def open_session_store(
    redis_url: str,
    ttl_s: float = RECORD_TTL_S,
    watch: Watch = lambda *_: None,
    access: RedisAccess = PLAIN,
) -> SessionStore:
    """The store at this URL, connected if it can be; memory if the URL is empty.

    Raises `InvalidConfig` for a URL that cannot be meant.
    """
    if not redis_url:
        return MemoryStore(ttl_s)
    store = SharedStore(RedisLink(redis_url, watch, access), ttl_s)
    await store.start()
    return store


class RedisLink:
    """Commands to Redis behind a breaker, which is open until the first `probe` succeeds.

    Redis is in use, or slow (requests are kept from it), or away.
    """

    def __init__(self, url: str, watch: Watch, access: RedisAccess = PLAIN) -> None:
        self._clients = RedisClients(url, access, _WRITER_BUDGET_S)
        self._client = self._clients.client
        self._watch = watch
        self._trouble = "not connected yet"
        self._is_away = True
        self._told: dict[str, float] = {}
        """When each trouble was last logged, so that one that comes and goes fills no log."""
        self._is_told = True
        """Whether the log says that Redis is away."""
        self._calls: set[asyncio.Task[Any]] = set()

    @property
    def trouble(self) -> str:
        """Why requests are kept from Redis now, in a word or two; empty when they are not."""
        return self._trouble

    @property
    def is_away(self) -> bool:
        """Whether nothing can be written to it either."""
        return self._is_away

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
            self._watch("ask", perf_counter() - began, _SLOW)
            if not self._is_away:
                self._call_slow()
            raise Away
        try:
            reply = call.result()
        except FAILURES as error:
            raise self._trip("ask", began, error) from error
        self._watch("ask", perf_counter() - began, "")
        return reply

    async def send(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        """The answers to many commands, in one go. Raises `Away` when one of them failed."""
        if self._is_away:
            raise Away
        began = perf_counter()
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        try:
            async with asyncio.timeout(_WRITER_BUDGET_S):
                replies = list(await pipeline.execute(raise_on_error=False))
        except FAILURES as error:
            raise self._trip("write", began, error) from error
        for reply in replies:
            if isinstance(reply, Exception):
                raise self._trip("write", began, reply) from reply
        self._answered("write", began)
        return replies

    async def probe(self) -> None:
        """Find out whether Redis can be written to, and how fast; open or close the breaker."""
        began = perf_counter()
        try:
            async with asyncio.timeout(_WRITER_BUDGET_S):
                if self._is_away:
                    await self._clients.start_anew()
                await self._client.execute_command(*_PROBE)
        except FAILURES as error:
            self._trip("probe", began, error)
            return
        self._answered("probe", began)

    async def aclose(self) -> None:
        """Close all connections."""
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls)
        await self._clients.aclose()

    def _ended(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # seen here, since nobody waits any more for a call that was too slow

    def _answered(self, operation: str, began: float) -> None:
        took = perf_counter() - began
        self._watch(operation, took, "")
        # A first answer has taken a connection as well: it says nothing about those to come.
        if self._is_away or took < _REQUEST_BUDGET_S:
            if self._is_told:
                log.info("Redis is in use")
            self._trouble, self._is_away, self._is_told = "", False, False
        elif self._trouble:
            self._call_slow()

    def _call_slow(self) -> None:
        self._tell(_SLOW, "no answer within a request's budget")
        self._trouble = _SLOW

    def _trip(self, operation: str, began: float, error: BaseException) -> Away:
        trouble = trouble_of(error)
        self._watch(operation, perf_counter() - began, trouble)
        self._tell(trouble, reason_of(error))
        self._trouble, self._is_away = trouble, True
        return Away()

    def _tell(self, trouble: str, reason: str) -> None:
        now = perf_counter()
        self._told = {told: at for told, at in self._told.items() if now < at + _TELL_AGAIN_S}
        if trouble not in self._told:
            log.warning("Redis: %s (%s); requests go on in memory", trouble, reason)
            self._told[trouble] = now
            self._is_told = True
