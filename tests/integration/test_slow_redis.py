"""A Redis that answers, and later than a request may wait."""

from pathlib import Path

import pytest
from redis_server import ManagedRedis
from relay import Relay
from session_stores import generation, recorded, until

from coordinator.session_store import open_session_store

DELAY_S = 0.2
"""More than a request waits, less than what is written behind it does."""
SLOW = "redis (slow: in memory for now)"


async def test_a_slow_redis_is_written_to_though_no_request_waits_for_it(
    redis_server: ManagedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine is no outage; outages have tests of their own.
    monkeypatch.setattr("coordinator.session_store._WRITER_BUDGET_S", 10)
    relay, calls = Relay(redis_server.path), list[tuple[str, float, str]]()
    async with relay.at(tmp_path / "socket"):
        store = await open_session_store(
            f"unix://{tmp_path}/socket", watch=lambda *call: calls.append(call)
        )
        early = [await store.open(generation(f"early{index}")) for index in range(10)]
        relay.delay_s = DELAY_S
        await store.open(generation("first"))
        calls.clear()
        for index in range(3):
            lease = await store.open(generation(f"late{index}"))
            await recorded(lease, 0)
            assert store.status == SLOW
        assert not [call for call in calls if call[0] == "ask"], "requests waited"
        relay.delay_s = 0
        await until(lambda: store.status == "redis")
        assert await store.affinity("s") is None
        with redis_server.client() as client:
            assert len(client.keys("*:request")) == len(early) + 1 + 3
            num_evals = client.info("commandstats")["cmdstat_eval"]["calls"]
        await store.aclose()
        assert num_evals <= 2 * len(early) + 5, "what it had was offered to it again"
