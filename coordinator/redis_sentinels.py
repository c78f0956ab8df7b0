"""The primary of a service, as Sentinels name it.

One of the modules that import redis, whose own way is to ask one Sentinel after the other: with
one of them gone without a word, that takes longer than anybody here waits.
"""

import asyncio
from typing import Any

from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.sentinel import SentinelConnectionPool

from coordinator.redis_troubles import FAILURES, NoPrimary, reason_of, trouble_of


class Sentinels:
    """Sentinels that are asked all at once."""

    def __init__(self, addresses: list[tuple[str, int]], options: dict[str, Any]) -> None:
        """`options` are those of connections to them."""
        self._clients = [
            Redis.from_pool(ConnectionPool(host=host, port=port, **options))
            for host, port in addresses
        ]
        self._asked: set[asyncio.Task[Any]] = set()

    def primary(self, service: str, options: dict[str, Any]) -> Redis:
        """A client of the primary of a service, whichever that is when it connects."""
        pool_class: Any = _PrimaryPool  # redis has no types for it
        return Redis.from_pool(pool_class(service, self, **options))

    async def discover_master(self, service: str) -> tuple[str, int]:
        """Where the first to answer says that the primary is; raises `NoPrimary`.

        It has the name under which redis looks for it.
        """
        asked = [asyncio.create_task(_ask(client)) for client in self._clients]
        self._asked.update(asked)
        for task in asked:
            task.add_done_callback(self._asked.discard)
        failures, is_known = [], False
        for answer in asyncio.as_completed(asked):
            services = await answer
            if isinstance(services, BaseException):
                failures.append(services)
            elif state := services.get(service):
                is_known = True
                if state["is_master"] and not state["is_sdown"] and not state["is_odown"]:
                    return state["ip"], state["port"]
        if is_known:
            raise NoPrimary("no primary", f"that of {service!r} is down, say Sentinels")
        if len(failures) < len(asked):
            raise NoPrimary("service not known to Sentinels", repr(service))
        raise NoPrimary(f"Sentinel {trouble_of(failures[0])}", reason_of(failures[0]))

    async def aclose(self) -> None:
        """Close all connections to Sentinels."""
        for task in self._asked:
            task.cancel()
        if self._asked:
            await asyncio.wait(self._asked)
        for client in self._clients:
            await client.aclose()


class _PrimaryPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to the primary; whoever wants one more than there may be waits."""


async def _ask(sentinel: Redis) -> Any:
    """What it knows of all services, or the error: nobody may be there any more to be told."""
    try:
        return await sentinel.sentinel_masters()
    except FAILURES as error:
        return error
