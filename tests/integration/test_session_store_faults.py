"""A Redis that stops, dies, comes back empty, fills up or refuses us, while requests go on."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from statistics import median

import pytest
from redis_server import ManagedRedis
from session_stores import generation, until

from coordinator.records import Lease, Placement, SessionStore
from coordinator.requests import FinishReason
from coordinator.session_store import open_session_store
from paceline.errors import Unavailable

BUDGET_S = 0.1
"""What a request may wait for Redis, once in an outage."""
AWAY = "redis (unreachable: in memory for now)"
Break = Callable[[ManagedRedis], None]
Mend = Callable[[ManagedRedis], None]

OUTAGES = [
    pytest.param(ManagedRedis.pause, ManagedRedis.resume, id="stopped"),
    pytest.param(ManagedRedis.kill, ManagedRedis.start, id="killed"),
]


async def seconds(call: Awaitable[object]) -> float:
    started = time.perf_counter()
    await call
    return time.perf_counter() - started


class Load:
    """Requests that commit a token every few milliseconds, and count the time of each call."""

    def __init__(self, store: SessionStore) -> None:
        self.store = store
        self.leases: list[Lease] = []
        self.seconds: list[float] = []
        self.stopping = False

    async def run(self) -> None:
        while not self.stopping:
            lease = await self.answer(f"r{len(self.leases)}")
            if len(self.leases) % 2:
                self.store.finish(lease, FinishReason.STOP)

    async def answer(self, request_id: str) -> Lease:
        started = time.perf_counter()
        lease = await self.store.open(generation(request_id))
        await self.store.affinity(request_id)
        self.seconds.append(time.perf_counter() - started)
        self.leases.append(lease)
        for index in range(5):
            self.store.append(lease, index, [index])
            await asyncio.sleep(0.002)
        self.store.remember_affinity(request_id, Placement(request_id))
        return lease


@pytest.mark.parametrize(("break_it", "mend_it"), OUTAGES)
async def test_an_outage_delays_nobody_and_what_it_missed_is_written_afterwards(
    break_it: Break, mend_it: Mend, redis_server: ManagedRedis
) -> None:
    store = await open_session_store(redis_server.url)
    running = await store.open(generation("running"))
    store.append(running, 0, [10, 11])
    load = Load(store)
    task = asyncio.create_task(load.run())
    await until(lambda: len(load.seconds) >= 10 and store.status == "redis")
    well = load.seconds[:]
    break_it(redis_server)
    await until(lambda: store.status == AWAY)
    before = len(load.seconds)
    await asyncio.sleep(1.5)
    assert store.status == AWAY
    during = load.seconds[before:]
    assert median(during) < 2 * median(well), "memory alone was slower than Redis"
    waited = sum(took > BUDGET_S for took in during)
    assert waited < len(during) / 10, "requests waited though the outage was known"
    store.append(running, 2, [12])
    mend_it(redis_server)
    await until(lambda: store.status == "redis")
    load.stopping = True
    await task
    await store.aclose()

    assert not any(lease.lost for lease in load.leases)
    other = await open_session_store(redis_server.url)
    for lease in [running, *load.leases]:
        resumed = await other.takeover(lease.request_id)
        assert resumed is not None, lease.request_id
        assert resumed.token_ids == tuple(lease.token_ids)
        assert resumed.finish_reason == lease.finish_reason
        assert resumed.generation == generation(lease.request_id)
    last = load.leases[-1].request_id
    assert await other.affinity(last) == Placement(last)
    await other.aclose()


@pytest.mark.parametrize(("break_it", "mend_it"), OUTAGES)
async def test_only_the_first_request_of_an_outage_can_wait(
    break_it: Break, mend_it: Mend, redis_server: ManagedRedis
) -> None:
    store = await open_session_store(redis_server.url)
    break_it(redis_server)
    first = await seconds(store.open(generation("first")))
    assert first < 5 * BUDGET_S
    rest = [await seconds(store.open(generation(f"r{index}"))) for index in range(20)]
    assert median(rest) < BUDGET_S / 10
    assert sum(rest) < 10 * BUDGET_S
    mend_it(redis_server)
    await store.aclose()


async def test_records_that_only_a_lost_redis_had_are_kept_by_whoever_wrote_them(
    redis_server: ManagedRedis,
) -> None:
    store = await open_session_store(redis_server.url)
    silent = await store.open(generation("silent"))
    store.append(silent, 0, [1, 2])
    await until(lambda: silent.num_recorded == 2)
    with redis_server.client() as client:
        client.flushall()
    store.append(silent, 2, [3])
    await until(lambda: silent.num_recorded == 3)
    other = await open_session_store(redis_server.url)
    resumed = await other.takeover("silent")
    assert resumed is not None
    assert resumed.token_ids == (1, 2, 3)
    await other.aclose()
    await store.aclose()


async def test_in_an_outage_only_the_owner_can_go_on_and_others_say_why_not(
    redis_server: ManagedRedis,
) -> None:
    store = await open_session_store(redis_server.url)
    other = await open_session_store(redis_server.url)
    lease = await store.open(generation("r"))
    store.append(lease, 0, [1, 2])
    redis_server.kill()
    resumed = await store.takeover("r")
    assert resumed is not None
    assert resumed.token_ids == (1, 2)
    assert lease.lost
    with pytest.raises(Unavailable, match=r"request_id 'r' cannot be looked up.*unreachable"):
        await other.takeover("r")
    redis_server.start()
    await until(lambda: other.status == store.status == "redis")
    await until(lambda: resumed.lease.num_recorded == 2)
    moved = await other.takeover("r")
    assert moved is not None
    assert moved.token_ids == (1, 2)
    await other.aclose()
    await store.aclose()


async def test_a_takeover_that_redis_runs_too_late_does_not_stop_the_new_owner(
    redis_server: ManagedRedis,
) -> None:
    store = await open_session_store(redis_server.url)
    lease = await store.open(generation("r"))
    redis_server.pause()
    resumed = await store.takeover("r")
    assert resumed is not None
    store.append(resumed.lease, 0, [1])
    redis_server.resume()
    await until(lambda: store.status == "redis")
    await until(lambda: resumed.lease.num_recorded == 1)
    assert lease.lost
    assert not resumed.lease.lost
    await store.aclose()


async def test_a_redis_that_is_not_there_at_the_start_is_used_once_it_is(
    redis_server: ManagedRedis,
) -> None:
    redis_server.kill()
    store = await open_session_store(redis_server.url)
    assert store.status == AWAY
    lease = await store.open(generation("r"))
    store.append(lease, 0, [1])
    redis_server.start()
    await until(lambda: lease.num_recorded == 1)
    assert store.status == "redis"
    await store.aclose()


@pytest.mark.parametrize("stop", [ManagedRedis.kill, ManagedRedis.pause])
async def test_an_outage_and_its_reason_show_even_when_nobody_asks(
    stop: Break,
    redis_server: ManagedRedis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = await open_session_store(redis_server.url)
    stop(redis_server)
    await until(lambda: store.status == AWAY)
    assert re.search(r"Redis: unreachable \(.+\); requests go on in memory", caplog.text)
    await store.aclose()


async def test_the_end_of_an_outage_that_only_a_reader_met_is_noticed_as_soon(
    redis_server: ManagedRedis,
) -> None:
    store = await open_session_store(redis_server.url)
    redis_server.pause()
    assert await store.affinity("s") is None
    assert store.status != "redis"
    redis_server.resume()
    await until(lambda: store.status == "redis", timeout_s=4)
    await store.aclose()


async def test_a_wrong_password_is_reported_and_requests_are_answered(
    redis_server: ManagedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server.client() as client:
        client.config_set("requirepass", "right")
    for login in (":wrong@", ""):
        url = redis_server.url.replace("unix://", f"unix://{login}")
        store = await open_session_store(url)
        assert store.status == "redis (password refused: in memory for now)"
        lease = await store.open(generation("r"))
        store.append(lease, 0, [1])
        assert await store.takeover("r") is not None
        await store.aclose()
    assert "password refused" in caplog.text
    assert "wrong" not in caplog.text
    store = await open_session_store(redis_server.url.replace("unix://", "unix://:right@"))
    assert store.status == "redis"
    await store.aclose()


async def test_a_user_who_may_not_write_is_reported(redis_server: ManagedRedis) -> None:
    with redis_server.client() as client:
        client.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read", "+@fast")
        client.execute_command("ACL", "SETUSER", "reader", "-@write")
    store = await open_session_store(redis_server.url.replace("unix://", "unix://reader:pw@"))
    assert store.status == "redis (permission refused: in memory for now)"
    await store.aclose()


async def test_a_full_redis_is_reported_and_used_again_when_it_has_room(
    redis_server: ManagedRedis,
) -> None:
    store = await open_session_store(redis_server.url)
    with redis_server.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1")
        lease = await store.open(generation("r"))
        store.append(lease, 0, [1, 2])
        assert store.status not in ("redis", AWAY)  # how it says so depends on its version
        client.config_set("maxmemory", "0")
    await until(lambda: lease.num_recorded == 2)
    assert store.status == "redis"
    await store.aclose()


async def test_an_impatient_request_does_not_cost_a_connection(redis_server: ManagedRedis) -> None:
    store = await open_session_store(redis_server.url)
    with redis_server.client() as client:
        await store.affinity("s")
        before = client.info("stats")["total_connections_received"]
        for _ in range(50):
            impatient = asyncio.create_task(store.affinity("s"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            impatient.cancel()
        await store.affinity("s")
        assert store.status == "redis"
        assert client.info("stats")["total_connections_received"] - before <= 16
    await store.aclose()
