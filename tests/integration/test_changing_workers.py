"""Pods that come and go while requests run: nothing fails, the text is the same."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from kubernetes_api import KubernetesApi
from table_requests import expected, request
from waiting import until
from worker_servers import (
    INFO,
    Cluster,
    WorkerServer,
    answer,
    answer_with_accidents,
    cluster,
    draft_server,
    target_server,
)

from paceline.workers.worker import Worker

SOURCES = ["kubernetes://target"], ["kubernetes://draft"]


@asynccontextmanager
async def listed(
    api: KubernetesApi, targets: list[WorkerServer], drafts: list[WorkerServer], num_ready: int = 2
) -> AsyncIterator[Cluster]:
    """A cluster that knows the first target and the first draft, by their Services."""
    async with cluster(targets, drafts, sources=SOURCES) as running:
        api.put_pod("target", targets[0].address)
        for draft in drafts[:1]:
            api.put_pod("draft", draft.address)
        await running.until_ready(num_ready)
        yield running


def ready(running: Cluster, num_targets: int, num_drafts: int) -> Callable[[], bool]:
    return lambda: (
        (len(running.pool.ready_targets()), len(running.pool.ready_drafts()))
        == (
            num_targets,
            num_drafts,
        )
    )


def the_worker(running: Cluster, server: WorkerServer) -> Worker:
    (found,) = [w for w in running.pool.targets if w.address == server.address]
    return found


async def test_tiers_grow_and_shrink_while_requests_run(api: KubernetesApi) -> None:
    targets = [target_server() for _ in range(2)]
    drafts = [draft_server("self") for _ in range(3)]
    async with listed(api, targets, drafts) as running, asyncio.TaskGroup() as group:
        is_over = False
        num_answers = 0

        async def keep_asking(temperature: float) -> None:
            nonlocal num_answers
            while not is_over:
                asked = request(max_tokens=30, temperature=temperature)
                assert (await answer(running.generator, asked)).token_ids == expected(asked)
                num_answers += 1

        async def a_few_answers() -> None:
            wanted = num_answers + 2
            await until(lambda: num_answers >= wanted)

        for temperature in (0.0, 1.0):
            group.create_task(keep_asking(temperature))
        await a_few_answers()
        for draft in drafts[1:]:
            api.put_pod("draft", draft.address)
        await until(ready(running, 1, 3))
        await a_few_answers()
        api.put_pod("target", targets[1].address)
        for draft in drafts:
            api.delete_pod("draft", draft.address)
        await until(ready(running, 2, 0))
        await a_few_answers()
        api.delete_pod("target", targets[0].address)
        api.put_pod("draft", drafts[0].address)
        await until(ready(running, 1, 1))
        await a_few_answers()
        is_over = True
    assert len(targets) == 2


async def test_a_removed_target_loses_its_sequence_to_another_one(api: KubernetesApi) -> None:
    targets = [target_server() for _ in range(2)]
    async with listed(api, targets, [], num_ready=1) as running:

        async def replace_it() -> None:
            api.put_pod("target", targets[1].address)
            await until(ready(running, 2, 0))
            api.delete_pod("target", targets[0].address)
            await until(ready(running, 1, 0))

        asked = request("off", max_tokens=40)
        said = await answer_with_accidents(running, asked, replace_it)
        assert said.token_ids == expected(asked)
        await targets[0].until_free()


async def test_a_terminating_target_ends_what_it_has_and_begins_nothing(
    api: KubernetesApi,
) -> None:
    targets = [target_server() for _ in range(2)]
    async with listed(api, targets, [], num_ready=1) as running:
        old = the_worker(running, targets[0])

        async def terminate() -> None:
            api.put_pod("target", targets[1].address)
            api.put_pod("target", targets[0].address, ready=False, serving=True, terminating=True)
            await until(lambda: ready(running, 1, 0)() and bool(old.closed))
            (told,) = [w for w in running.generator.status().workers if not w.ready]
            assert told.reason == "gets no new sequences: its pod is terminating"
            other = request("off", max_tokens=5)
            assert (await answer(running.generator, other)).token_ids == expected(other)
            assert targets[0].load.num_sequences == 1

        asked = request("off", max_tokens=60)
        said = await answer_with_accidents(running, asked, terminate)
        assert said.token_ids == expected(asked)
        assert running.generator.status().events.num_moved.get("target", 0) == 0


async def test_a_readiness_that_flaps_cuts_nothing(api: KubernetesApi) -> None:
    target = target_server()
    async with listed(api, [target], [], num_ready=1) as running:
        worker = the_worker(running, target)

        async def flap() -> None:
            api.put_pod("target", target.address, ready=False, serving=False)
            await until(lambda: not worker.is_ready)
            api.put_pod("target", target.address)
            await until(lambda: worker.is_ready)

        asked = request("off", max_tokens=60)
        said = await answer_with_accidents(running, asked, flap, flap)
        assert said.token_ids == expected(asked)
        assert the_worker(running, target) is worker
        assert running.generator.status().events.num_lost["target"] == 0


async def test_a_probe_that_fails_everywhere_at_once_fails_nothing(api: KubernetesApi) -> None:
    targets = [target_server() for _ in range(2)]
    async with listed(api, targets, [], num_ready=1) as running:
        api.put_pod("target", targets[1].address)
        await until(ready(running, 2, 0))

        async def fail_everywhere() -> None:
            for target in targets:
                api.put_pod("target", target.address, ready=False, serving=False)
            await until(ready(running, 0, 0))
            assert running.generator.status().ready
            other = request("off", max_tokens=5)
            assert (await answer(running.generator, other)).token_ids == expected(other)
            await until(lambda: sum(target.load.num_sequences for target in targets) == 1)
            (busy,) = [target for target in targets if target.load.num_sequences]
            await busy.kill()

        asked = request("off", max_tokens=300)
        said = await answer_with_accidents(running, asked, fail_everywhere)
        assert said.token_ids == expected(asked)
        assert running.generator.status().events.num_moved["target"] == 1


async def test_another_pod_at_the_same_address_is_another_worker(api: KubernetesApi) -> None:
    target = target_server()
    async with listed(api, [target], [], num_ready=1) as running:
        before = the_worker(running, target)
        api.put_pod("target", target.address, uid="another")
        await until(lambda: the_worker(running, target) is not before)
        await until(lambda: the_worker(running, target).is_ready)
        assert not before.is_connected
        asked = request("off")
        assert (await answer(running.generator, asked)).token_ids == expected(asked)


async def test_new_sequences_go_to_newer_numerics_and_running_ones_stay(
    api: KubernetesApi,
) -> None:
    old = target_server(info=replace(INFO, numerics="old", started_at_ms=1000))
    new = target_server(info=replace(INFO, numerics="new", started_at_ms=2000))
    async with listed(api, [old, new], [], num_ready=1) as running:

        async def roll_out() -> None:
            api.put_pod("target", new.address)
            await until(ready(running, 2, 0))
            for _ in range(3):
                other = request("off", max_tokens=5)
                said = await answer(running.generator, other)
                assert said.token_ids == expected(other)
                assert said.generation.numerics == {"new"}

        asked = request("off", max_tokens=60)
        said = await answer_with_accidents(running, asked, roll_out)
        assert said.token_ids == expected(asked)
        assert said.generation.numerics == {"old"}
        assert not said.generation.numerics_changed

        async def end_rollout() -> None:
            api.delete_pod("target", old.address)
            await until(ready(running, 1, 0))

        api.put_pod("target", old.address, uid="back")
        await until(ready(running, 2, 0))
        asked = request("off", max_tokens=40)
        said = await answer_with_accidents(running, asked, end_rollout)
        assert said.token_ids == expected(asked)
        assert said.generation.numerics == {"new"}


async def test_the_status_tells_what_each_source_sees(api: KubernetesApi) -> None:
    async with listed(api, [target_server()], [draft_server("self")]) as running:
        target, draft = running.generator.status().sources
        assert (target.role, target.source, target.num_open) == ("target", SOURCES[0][0], 1)
        assert (draft.role, draft.num_closed, draft.problem) == ("draft", 0, "")
        assert draft.heard_s_ago is not None
        api.delete_pod("target", running.targets[0].address)
        await until(ready(running, 0, 1))
        assert "kubernetes://target: lists no worker" in running.generator.status().reason
