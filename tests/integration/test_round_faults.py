"""Workers that die, come back, do not fit or run full; clients that leave. Real gRPC throughout."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest
from table_requests import expected, request
from waiting import SOON_S
from worker_servers import (
    INFO,
    LAW,
    Cluster,
    WorkerServer,
    answer,
    answer_with_accidents,
    cluster,
    draft_server,
    target_server,
)

from paceline.errors import Unavailable
from paceline.rounds import PROTOCOL_MAJOR, SequenceSettings, VerifyResult, VerifyRound
from paceline.token_log import TokenLog
from paceline.workers import WorkerLost
from paceline.workers.worker import Worker


async def restart(server: WorkerServer) -> None:
    await server.kill()
    await server.start()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_draft_that_dies_and_comes_back_changes_nothing(temperature: float) -> None:
    draft = draft_server("self")
    async with cluster([target_server()], [draft]) as running:
        await running.until_ready()
        asked = request("self", 3, max_tokens=200, temperature=temperature)
        said = await answer_with_accidents(running, asked, draft.kill, draft.start)
        assert said.token_ids == expected(asked)
        await running.until_ready()
        again = request("self", 3, temperature=temperature)
        assert (await answer(running.generator, again)).generation.stats.num_spec_steps > 0
        await running.until_free()


async def test_another_draft_takes_over_from_one_that_dies() -> None:
    drafts = [draft_server("self") for _ in range(2)]
    async with cluster([target_server()], drafts) as running:
        await running.until_ready()

        async def kill_the_one_in_use() -> None:
            for draft in drafts:
                if draft.load.num_sequences:
                    await draft.kill()

        asked = request("self", 3, max_tokens=200)
        said = await answer_with_accidents(running, asked, kill_the_one_in_use)
        assert said.token_ids == expected(asked)
        stats = said.generation.stats
        assert stats.num_accepted_draft_tokens > 120, "drafting went on"


@pytest.mark.parametrize("method", ["off", "self"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_another_target_takes_over_from_one_that_dies(
    method: str, temperature: float
) -> None:
    targets = [target_server() for _ in range(2)]
    async with cluster(targets, [draft_server("self")]) as running:
        await running.until_ready()
        survivors = []

        async def kill_the_one_in_use() -> None:
            for target in targets:
                if target.load.num_sequences:
                    await target.kill()
                else:
                    survivors.append(target)

        asked = request(method, 3, max_tokens=600, temperature=temperature)
        said = await answer_with_accidents(running, asked, kill_the_one_in_use)
        assert said.token_ids == expected(asked)
        assert len(survivors) == 1
        assert not said.generation.numerics_changed
        await survivors[0].until_free()


@pytest.mark.parametrize("method", ["off", "self"])
async def test_the_only_target_dies_and_comes_back(method: str) -> None:
    target = target_server()
    async with cluster([target], [draft_server("self")]) as running:
        await running.until_ready()
        asked = request(method, 3, max_tokens=600)
        said = await answer_with_accidents(running, asked, lambda: restart(target))
        assert said.token_ids == expected(asked)
        await running.until_free()


async def test_a_move_to_other_arithmetic_is_told() -> None:
    targets = [target_server(), target_server(info=replace(INFO, numerics="other"))]
    async with cluster(targets) as running:
        await running.until_ready()

        async def kill_the_one_in_use() -> None:
            for target in targets:
                if target.load.num_sequences:
                    await target.kill()

        said = await answer_with_accidents(
            running, request("off", max_tokens=600), kill_the_one_in_use
        )
        assert said.generation.numerics_changed


async def test_without_any_target_the_answer_fails_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coordinator.router.TARGET_WAIT_S", 0.2)
    target = target_server()
    async with cluster([target]) as running:
        await running.until_ready()
        with pytest.raises(Unavailable, match="no target worker is ready"):
            await answer_with_accidents(running, request("off", max_tokens=3000), target.kill)
        assert not running.generator.status().ready


@pytest.mark.parametrize("method", ["off", "auto", "self"])
async def test_a_client_that_leaves_frees_its_sequences(method: str) -> None:
    async with cluster([target_server()], [draft_server("self")]) as running:
        await running.until_ready()
        generation = await running.generator.prepare(request(method, 3, max_tokens=3000))
        async with aclosing(running.generator.stream(generation)) as steps:
            async for step in steps:
                if step.num_committed_tokens >= 5:
                    break
        await running.until_free()
        assert running.generator.status().num_running == 0


@pytest.mark.parametrize("num_ticks", range(0, 12))
async def test_a_client_that_leaves_at_any_moment_frees_its_sequences(num_ticks: int) -> None:
    async with cluster([target_server()], [draft_server("self")]) as running:
        await running.until_ready()
        task = asyncio.create_task(answer(running.generator, request("self", 3)))
        for _ in range(num_ticks):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        # What was sent before is on its way still: the next answer shows that it has arrived.
        said = await answer(running.generator, asked := request("self", 3))
        assert said.token_ids == expected(asked)
        await running.until_free()


async def test_a_coordinator_that_goes_frees_its_sequences() -> None:
    async with cluster([target_server()], [draft_server("self")]) as running:
        await running.until_ready()
        generation = await running.generator.prepare(request("self", 3, max_tokens=3000))
        steps = running.generator.stream(generation)
        while (await anext(steps)).num_committed_tokens < 5:
            pass
        assert running.targets[0].load.num_sequences == 1
        await running.pool.stop()
        await running.until_free()
        await steps.aclose()


async def test_a_full_pool_preempts_and_says_the_same() -> None:
    target = target_server(num_cells=6, max_model_len=96)
    async with cluster([target], [draft_server("self")]) as running:
        await running.until_ready()
        requests = [request("self", 3, max_tokens=50, seed=i, temperature=1.0) for i in range(6)]
        answers = await asyncio.gather(*(answer(running.generator, r) for r in requests))
        assert [said.token_ids for said in answers] == [expected(asked) for asked in requests]
        assert target.load.num_preemptions > 0
        await running.until_free()


SETTINGS = SequenceSettings(max_length=30)


async def test_a_restarted_target_says_that_it_holds_nothing() -> None:
    target = target_server()
    async with cluster([target]) as running:
        await running.until_ready()
        log = TokenLog.of([1, 2, 3])
        (worker,) = running.pool.targets
        first = VerifyRound("a", 1, log.span(0), settings=SETTINGS)
        result = await first_result(worker, first)
        log.token_ids.extend(result.token_ids)
        await restart(target)
        async with asyncio.timeout(SOON_S):
            while worker.is_ready:
                await running.pool.until_changed()
        with pytest.raises(WorkerLost, match=worker.address):
            await first_result(worker, VerifyRound("a", 2, log.span(4)))
        await running.until_ready()
        assert (await first_result(worker, VerifyRound("a", 3, log.span(4)))).held == 0
        again = await first_result(worker, VerifyRound("a", 4, log.span(0), settings=SETTINGS))
        assert (again.start, len(again.token_ids)) == (4, 1)


async def first_result(worker: Worker, round: VerifyRound) -> VerifyResult:
    async with aclosing(worker.results(round)) as results:
        return await anext(results)


async def refusals(running: Cluster, num_refused: int) -> list[str]:
    """Why so many workers are not used, once all have been asked what they are."""
    workers = [*running.pool.targets, *running.pool.drafts]
    async with asyncio.timeout(SOON_S):
        while True:
            reasons = [w.reason for w in workers if w.info is not None and not w.is_ready]
            if len(reasons) == num_refused and not any("no target" in r for r in reasons):
                return reasons
            await running.pool.until_changed()


async def test_a_worker_of_another_protocol_is_refused_by_name() -> None:
    draft = draft_server("self", protocol_major=PROTOCOL_MAJOR + 1)
    async with cluster([target_server()], [draft]) as running:
        (reason,) = await refusals(running, 1)
        assert f"protocol_major is {PROTOCOL_MAJOR + 1}; expected {PROTOCOL_MAJOR}" in reason
        assert "1.2.3" in reason
        await running.generator.load_tokenizer()
        said = await answer(running.generator, asked := request())
        assert said.token_ids == expected(asked)


async def test_a_draft_with_other_tokens_is_refused_by_name() -> None:
    draft = draft_server("draft-model", model="stranger", tokenizer_digest="feedbeef0123456789")
    async with cluster([target_server()], [draft]) as running:
        (reason,) = await refusals(running, 1)
        assert "'stranger'" in reason
        assert "feedbeef0123" in reason
        assert INFO.tokenizer_digest[:12] in reason


async def test_of_two_targets_with_unequal_models_one_is_refused_by_name() -> None:
    other = target_server(replace(LAW, seed=9), info=replace(INFO, model="table:9"))
    async with cluster([target_server(), other]) as running:
        (reason,) = await refusals(running, 1)
        assert "'table:7'" in reason
        assert "'table:9'" in reason
