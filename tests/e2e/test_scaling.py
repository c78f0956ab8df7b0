"""Tiers that grow, shrink and restart while clients ask: no request fails, no text changes.

Pods are real processes that the coordinator finds in the EndpointSlices of a Kubernetes API server
of our own.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from answers import FrontEnd
from conftest import TABLE
from kubernetes_api import KubernetesApi
from observed import is_idle, soon
from pods import DRAFTS, QUESTIONS, TARGETS, Load, Phase, Pods, plain_answers
from processes import Coordinator, Processes
from redis_server import ManagedRedis

pytestmark = pytest.mark.timeout(900)

DRAFT = f"{TABLE}:0.2"


@pytest.fixture
async def pods(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Pods]:
    async with KubernetesApi() as api:
        monkeypatch.setenv("KUBECONFIG", str(api.write_kubeconfig(tmp_path / "kubeconfig")))
        pods = Pods(processes, api)
        yield pods
        for worker in (*pods.targets, *pods.drafts):
            worker.kill()


async def start_coordinator(processes: Processes, pods: Pods, redis_url: str = "") -> Coordinator:
    coordinator = processes.coordinator([TARGETS], [DRAFTS], redis_url)
    await asyncio.to_thread(coordinator.wait_ready)  # it asks our API server meanwhile
    await pods.until_seen(coordinator)
    return coordinator


async def test_drafts_and_targets_are_added_and_taken_away_under_load(
    processes: Processes, pods: Pods
) -> None:
    target_pods = [pods.start_target(model=TABLE) for _ in range(2)]
    draft_pods = [pods.start_draft("draft-model", model=DRAFT) for _ in range(4)]
    await pods.add(target_pods[0], draft_pods[0])
    coordinator = await start_coordinator(processes, pods)
    load = Load([coordinator], await plain_answers(coordinator, QUESTIONS))
    phases: list[Phase] = []

    async def next_phase(what: str) -> None:
        await pods.until_seen(coordinator)
        phases.append(await load.phase(what, pods))

    async with load.running():
        await next_phase("one of each")
        await pods.add(*draft_pods[1:3])
        await next_phase("three drafts")
        await pods.add(target_pods[1])
        await next_phase("two targets")
        for draft in draft_pods[:3]:
            await pods.remove(draft)
        await next_phase("no draft")
        await pods.remove(target_pods[0])
        await next_phase("the other target alone")
        await pods.add(draft_pods[3])
        await next_phase("a new draft")
    coordinator.stop()
    sizes = [(phase.num_targets, phase.num_drafts) for phase in phases]
    assert sizes == [(1, 1), (1, 3), (2, 3), (2, 0), (1, 0), (1, 1)]
    for phase in phases:
        assert (phase.num_accepted > 0) == (phase.num_drafts > 0), phase.what


async def test_every_tier_is_restarted_one_after_the_other_under_load(
    processes: Processes, pods: Pods
) -> None:
    target_pods = [pods.start_target(model=TABLE) for _ in range(2)]
    draft_pods = [pods.start_draft("draft-model", model=DRAFT) for _ in range(2)]
    with ManagedRedis() as redis:
        await pods.add(target_pods[0], draft_pods[0])
        old = await start_coordinator(processes, pods, redis.url)
        # A client over HTTP asks one address; what goes on at another one by itself is gRPC's.
        load = Load([old], await plain_answers(old, QUESTIONS), [FrontEnd.GRPC])
        async with load.running():
            await load.phase("before", pods)
            await pods.add(draft_pods[1])
            await pods.remove(draft_pods[0])
            await load.phase("another draft", pods)
            await pods.add(target_pods[1])
            await pods.remove(target_pods[0])
            await load.phase("another target", pods)
            new = await start_coordinator(processes, pods, redis.url)
            load.coordinators.append(new)
            await load.phase("two coordinators", pods)
            await asyncio.to_thread(old.stop)
            load.coordinators.remove(old)
            after = await load.phase("another coordinator", pods)
        await soon(lambda: is_idle(new), "nothing runs any more")
        new.stop()
    assert after.num_accepted > 0
