"""Records in a real Redis: what is written, who may write it, and what is found again."""

import asyncio
from collections.abc import Iterator

import pytest
from redis_server import BINARIES, ManagedRedis
from session_stores import generation, recorded, store_at, until

from coordinator.record_scripts import ABSENT, STALE, WRITE
from coordinator.records import Placement, encode_generation
from coordinator.requests import FinishReason
from coordinator.session_store import open_session_store
from paceline.errors import InvalidRequest

PLACEMENT = Placement("target:1", "draft:2", "digest")


@pytest.fixture(params=BINARIES)
def redis_server(request: pytest.FixtureRequest) -> Iterator[ManagedRedis]:
    """Every server there is on this machine, in turn."""
    with ManagedRedis(BINARIES[request.param]) as server:
        yield server


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no outage; outages have tests of their own."""
    monkeypatch.setattr("coordinator.session_store._REQUEST_BUDGET_S", 10)
    monkeypatch.setattr("coordinator.session_store._WRITER_BUDGET_S", 10)


async def test_another_store_finds_the_request_its_tokens_and_its_workers(redis_url: str) -> None:
    async with store_at(redis_url) as first, store_at(redis_url) as second:
        assert first.status == "redis"
        lease = await first.open(generation())
        first.append(lease, 0, [5, 2**32 - 1])
        first.append(lease, 2, [7])
        first.place(lease, PLACEMENT)
        await recorded(lease, 3)
        resumed = await second.takeover("r")
        assert resumed is not None
        assert resumed.generation == generation()
        assert resumed.token_ids == (5, 2**32 - 1, 7)
        assert resumed.placement == PLACEMENT
        assert resumed.finish_reason is None
        assert resumed.lease.epoch > lease.epoch
        assert await second.takeover("never heard of") is None


@pytest.mark.parametrize("where", ["redis", "memory"])
async def test_who_only_looks_takes_nothing_over(redis_url: str, where: str) -> None:
    async with store_at(redis_url if where == "redis" else "") as first:
        lease = await first.open(generation())
        first.append(lease, 0, [5])
        first.place(lease, PLACEMENT)
        if where == "redis":
            await recorded(lease, 1)
        async with store_at(redis_url) as other:
            for store in (first, other if where == "redis" else first):
                found = await store.look_up("r")
                assert found is not None
                assert found.generation == generation()
                assert (found.token_ids, found.placement) == ((5,), PLACEMENT)
                assert await store.look_up("never heard of") is None
        first.append(lease, 1, [6])
        if where == "redis":
            await recorded(lease, 2)
        found = await first.look_up("r")
        assert found is not None
        assert found.token_ids == (5, 6)
        assert not lease.lost


async def test_what_is_finished_stays_finished_for_whoever_takes_it_over(redis_url: str) -> None:
    async with store_at(redis_url) as first, store_at(redis_url) as second:
        lease = await first.open(generation())
        first.append(lease, 0, [5])
        first.finish(lease, FinishReason.LENGTH)
        await first.aclose()
        for _ in range(2):
            resumed = await second.takeover("r")
            assert resumed is not None
            assert resumed.finish_reason is FinishReason.LENGTH
            assert resumed.token_ids == (5,)


async def test_closing_writes_what_has_not_been_written(redis_url: str) -> None:
    first = await open_session_store(redis_url)
    lease = await first.open(generation())
    first.append(lease, 0, [1, 2])
    first.remember_affinity("s", PLACEMENT)
    await first.aclose()
    async with store_at(redis_url) as second:
        resumed = await second.takeover("r")
        assert resumed is not None
        assert resumed.token_ids == (1, 2)
        assert await second.affinity("s") == PLACEMENT


async def test_a_name_on_record_anywhere_is_refused(redis_url: str) -> None:
    async with store_at(redis_url) as first, store_at(redis_url) as second:
        lease = await first.open(generation())
        with pytest.raises(InvalidRequest, match="'r' is on record already") as caught:
            await second.open(generation())
        assert caught.value.field == "request_id"
        assert not lease.lost
        first.append(lease, 0, [8])
        await recorded(lease, 1)
        resumed = await second.takeover("r")
        assert resumed is not None
        assert resumed.token_ids == (8,)


async def test_doubled_and_late_parts_change_nothing_and_no_gap_is_recorded(
    redis_url: str,
) -> None:
    async with store_at(redis_url) as first, store_at(redis_url) as second:
        lease = await first.open(generation())
        first.append(lease, 0, [1, 2, 3])
        await recorded(lease, 3)
        first.append(lease, 3, [4, 5])
        first.append(lease, 7, [8])
        first.append(lease, 0, [1, 2])
        first.append(lease, 3, [4, 5, 6])
        first.append(lease, 3, [4])
        first.append(lease, 8, [9])
        await recorded(lease, 6)
        resumed = await second.takeover("r")
        assert resumed is not None
        assert resumed.token_ids == (1, 2, 3, 4, 5, 6)


async def test_after_a_takeover_the_old_owner_hears_of_it_and_writes_no_more(
    redis_url: str,
) -> None:
    async with store_at(redis_url) as first, store_at(redis_url) as second:
        old = await first.open(generation())
        first.append(old, 0, [1, 2])
        await recorded(old, 2)
        resumed = await second.takeover("r")
        assert resumed is not None
        second.append(resumed.lease, 2, [3])
        await recorded(resumed.lease, 3)
        first.append(old, 2, [9, 9, 9])
        first.finish(old, FinishReason.STOP)
        await until(lambda: old.lost)
        again = await first.takeover("r")
        assert again is not None
        assert again.token_ids == (1, 2, 3)
        assert again.finish_reason is None
        second.append(resumed.lease, 3, [9])
        await until(lambda: resumed.lease.lost)


async def test_a_takeover_where_the_owner_is_loses_nothing_that_is_not_written_yet(
    redis_url: str,
) -> None:
    async with store_at(redis_url) as store:
        old = await store.open(generation())
        store.append(old, 0, [1, 2, 3])
        resumed = await store.takeover("r")
        assert resumed is not None
        assert resumed.token_ids == (1, 2, 3)
        assert old.lost
        await recorded(resumed.lease, 3)


async def test_of_many_takeovers_at_once_one_wins_and_the_others_hear_of_it(
    redis_url: str,
) -> None:
    async with store_at(redis_url) as first, store_at(redis_url) as second:
        old = await first.open(generation())
        first.append(old, 0, [1])
        await recorded(old, 1)
        taken = await asyncio.gather(*(s.takeover("r") for s in [first, second] * 10))
        leases = [resumed.lease for resumed in taken if resumed is not None]
        assert len({lease.epoch for lease in leases}) == 20, "an epoch was given twice"
        for index, lease in enumerate(leases):
            [first, second][index % 2].append(lease, 1, [index])
        await until(lambda: sum(not lease.lost for lease in leases) == 1)
        (winner,) = (lease for lease in leases if not lease.lost)
        assert winner.epoch == max(lease.epoch for lease in leases)
        await recorded(winner, 2)
        assert old.lost


async def test_an_epoch_from_a_clock_that_is_ahead_is_still_surpassed(
    redis_server: ManagedRedis,
) -> None:
    async with store_at(redis_server.url) as first, store_at(redis_server.url) as second:
        old = await first.open(generation())
        ahead = old.epoch + 3_600_000
        with redis_server.client() as client:
            client.hset("{paceline:r}:meta", "epoch", str(ahead))
        resumed = await second.takeover("r")
        assert resumed is not None
        assert resumed.lease.epoch == ahead + 1
        second.append(resumed.lease, 0, [1])
        await recorded(resumed.lease, 1)


async def test_writes_that_arrive_late_change_nothing(redis_server: ManagedRedis) -> None:
    keys = [f"{{paceline:r}}:{part}" for part in ("request", "tokens", "meta")]
    async with store_at(redis_server.url) as store:
        lease = await store.open(generation())
        store.append(lease, 0, [1, 2, 3])
        store.finish(lease, FinishReason.STOP)
        await recorded(lease, 3)
        with redis_server.client() as client:
            before = [client.get(keys[0]), client.get(keys[1]), client.hgetall(keys[2])]

            def write(epoch: int, start: int, ids: bytes, body: bytes) -> int:
                extra = (*("session", "s"), *("target", ""), *("draft", ""), *("numerics", ""))
                settings = (epoch, 3_600_000, start, ids, body, "")
                return int(client.eval(WRITE, 3, *keys, *settings, *extra))

            body = encode_generation(generation())
            assert write(lease.epoch, 0, b"\1\0\0\0", body) == 3
            assert write(lease.epoch, 1, b"\2\0\0\0", b"") == 3
            assert write(lease.epoch, 4, b"\5\0\0\0", b"") == 3, "it would leave a gap"
            assert write(lease.epoch - 1, 0, b"\7\0\0\0", body) == STALE
            assert write(lease.epoch + 1, 3, b"\7\0\0\0", b"") == ABSENT
            assert before == [client.get(keys[0]), client.get(keys[1]), client.hgetall(keys[2])]


async def test_every_key_has_a_time_to_live_and_writing_renews_it(
    redis_server: ManagedRedis,
) -> None:
    async with store_at(redis_server.url) as store:
        lease = await store.open(generation())
        store.append(lease, 0, [1])
        store.remember_affinity("s", PLACEMENT)
        await recorded(lease, 1)
        with redis_server.client() as client:
            await until(lambda: client.exists("{paceline:session:s}") == 1)
            keys = {key.decode() for key in client.keys("*")} - {"{paceline:probe}"}
            record = {f"{{paceline:r}}:{part}" for part in ("request", "tokens", "meta")}
            assert keys == record | {"{paceline:session:s}"}
            assert all(0 < client.pttl(key) <= 3_600_000 for key in client.keys("*"))
            for key in record:
                client.pexpire(key, 60_000)
            store.append(lease, 1, [2])
            await recorded(lease, 2)
            assert all(client.pttl(key) > 3_000_000 for key in record)


async def test_the_hash_tells_a_reader_how_far_the_answer_is(redis_server: ManagedRedis) -> None:
    async with store_at(redis_server.url) as store:
        lease = await store.open(generation())
        store.append(lease, 0, [1, 2])
        store.place(lease, PLACEMENT)
        await recorded(lease, 2)
        with redis_server.client() as client:
            expected = {
                "epoch": str(lease.epoch),
                "committed": "2",
                "state": "running",
                "session": "s",
                "target": "target:1",
                "draft": "draft:2",
                "numerics": "digest",
            }
            found = client.hgetall("{paceline:r}:meta")
            assert {key.decode(): value.decode() for key, value in found.items()} == expected
            store.finish(lease, FinishReason.STOP)
            await store.aclose()
            assert client.hmget("{paceline:r}:meta", "state", "finish_reason") == [
                b"finished",
                b"stop",
            ]


async def test_the_last_workers_of_a_session_are_known_everywhere(redis_url: str) -> None:
    async with store_at(redis_url) as first, store_at(redis_url) as second:
        assert await second.affinity("s") is None
        first.remember_affinity("s", Placement("old"))
        first.remember_affinity("s", PLACEMENT)
        assert await first.affinity("s") == PLACEMENT
        await first.aclose()
        assert await second.affinity("s") == PLACEMENT


@pytest.mark.parametrize("name", ["", "}", "a}:meta", "{b}", "\ud800", "Ünï\n", "session:s"])
async def test_names_may_hold_anything(name: str, redis_url: str) -> None:
    async with store_at(redis_url) as first, store_at(redis_url) as second:
        lease = await first.open(generation(name, session_id=name))
        first.append(lease, 0, [1])
        first.remember_affinity(name, PLACEMENT)
        await first.aclose()
        assert first.status == "redis"
        resumed = await second.takeover(name)
        assert resumed is not None
        assert resumed.generation.request.session_id == resumed.lease.session_id == name
        assert resumed.token_ids == (1,)
        assert await second.affinity(name) == PLACEMENT
