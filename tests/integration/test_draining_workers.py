"""Workers that leave in order: no new sequences, the running ones end there or move."""

import asyncio
from collections.abc import Callable

import pytest
from table_requests import expected, request
from waiting import NEVER_S, SOON_S
from worker_servers import (
    WorkerServer,
    answer,
    answer_with_accidents,
    cluster,
    draft_server,
    rest_of,
    target_server,
)

from paceline.workers.pool import WorkerPool


def busy(servers: list[WorkerServer]) -> WorkerServer:
    """The one that has the only running sequence."""
    (found,) = [server for server in servers if server.load.num_sequences]
    return found


async def until(pool: WorkerPool, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not condition():
            await pool.until_changed()


async def test_a_draining_target_keeps_its_sequence_and_gets_no_other() -> None:
    targets = [target_server() for _ in range(2)]
    async with cluster(targets) as running, asyncio.TaskGroup() as group:
        await running.until_ready()

        async def drain() -> None:
            leaving = busy(targets)
            group.create_task(leaving.leave(NEVER_S))
            await until(running.pool, lambda: len(running.pool.ready_targets()) == 1)
            (found,) = [w for w in running.generator.status().workers if not w.ready]
            assert (found.address, found.num_sequences) == (leaving.address, 1)
            assert "shuts down" in found.reason
            other = request("off")
            assert (await answer(running.generator, other)).token_ids == expected(other)
            assert leaving.load.num_sequences == 1
            assert running.pool.draining_targets() != []

        asked = request("off", max_tokens=300)
        async with asyncio.timeout(SOON_S):
            said = await answer_with_accidents(running, asked, drain)
            assert said.token_ids == expected(asked)
            await until(running.pool, lambda: not running.pool.draining_targets())
        assert running.generator.status().ready


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_sequence_that_outlasts_the_drain_moves_to_another_target(
    temperature: float,
) -> None:
    targets, drafts = ([target_server() for _ in range(2)], [draft_server("self")])
    async with cluster(targets, drafts) as running:
        await running.until_ready()
        asked = request("self", 3, max_tokens=300, temperature=temperature)
        said = await answer_with_accidents(running, asked, lambda: busy(targets).leave(0.05))
        assert said.token_ids == expected(asked)
        assert not said.generation.numerics_changed


async def test_the_only_target_goes_on_with_everything_while_it_is_there() -> None:
    target = target_server()
    async with cluster([target]) as running, asyncio.TaskGroup() as group:
        await running.until_ready()
        waiting = request("off", max_tokens=100)
        generation = await running.generator.prepare(waiting)

        async def drain() -> None:
            group.create_task(target.leave(NEVER_S))
            await until(running.pool, lambda: not running.pool.ready_targets())
            assert "shuts down" in running.generator.status().reason
            assert (await rest_of(running.generator, generation)).token_ids == expected(waiting)

        asked = request("off", max_tokens=300)
        async with asyncio.timeout(SOON_S):
            assert (await answer_with_accidents(running, asked, drain)).token_ids == expected(asked)


async def test_another_draft_takes_over_from_one_that_leaves() -> None:
    drafts = [draft_server("self") for _ in range(2)]
    async with cluster([target_server()], drafts) as running:
        await running.until_ready()
        asked = request("self", 3, max_tokens=200)
        said = await answer_with_accidents(running, asked, lambda: busy(drafts).leave(0.0))
        assert said.token_ids == expected(asked)
        assert said.generation.stats.num_accepted_draft_tokens > 120, "drafting went on"


async def test_workers_without_sequences_leave_at_once_and_their_callers_know() -> None:
    target, draft = target_server(), draft_server("self")
    async with cluster([target], [draft]) as running:
        await running.until_ready()
        assert (await answer(running.generator, request("self", 3))).token_ids
        async with asyncio.timeout(SOON_S):
            await asyncio.gather(target.leave(NEVER_S), draft.leave(NEVER_S))
            await until(running.pool, lambda: not running.pool.ready_targets())
            await until(running.pool, lambda: not running.pool.ready_drafts())


async def test_a_caller_that_comes_while_a_worker_drains_is_told_at_once() -> None:
    target = target_server()
    async with cluster([target]) as running, asyncio.TaskGroup() as group:
        await running.until_ready()

        async def connect_while_it_drains() -> None:
            group.create_task(target.leave(NEVER_S))
            await until(running.pool, lambda: not running.pool.ready_targets())
            other = WorkerPool([target.address], [])
            other.start()
            await until(other, lambda: bool(other.draining_targets()))
            await other.stop()

        asked = request("off", max_tokens=300)
        async with asyncio.timeout(SOON_S):
            said = await answer_with_accidents(running, asked, connect_while_it_drains)
            assert said.token_ids == expected(asked)
