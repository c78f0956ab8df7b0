"""A release is updated while clients ask: by the rendered strategies, without a failed answer.

Clients ask in every way; where a stream breaks off they go on as documented. Proxies go on sending
to a pod for a second after it was told to stop.
"""

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from answers import Body, ask_grpc, check_equal, drafts, http_client
from chart_release import COORDINATOR, REDIS, Release, installed, needs_cluster
from observed import soon
from pods import QUESTIONS, Load, plain_answers

from tests.chart.rendering import render
from tests.cluster.deployments import Deployment
from tests.cluster.pod import Pod

pytestmark = [needs_cluster, pytest.mark.timeout(600)]

POOL = "paceline-draft-small"
LAG_S = 1.0
TIERS: dict[str, Any] = {
    "target": {"settings": {"model": "table:7"}},
    "drafts": {
        "default": None,
        "small": {"settings": {"drafter": "draft-model", "model": "table:7:0.2"}},
    },
}
UPDATED = {**TIERS, "defaults": {"podAnnotations": {"update": "1"}}}
LONG: Body = {
    "prompt": "On and on",
    "ignore_eos": True,
    "max_tokens": 3500,
    "temperature": 0.8,
    "seed": 1,
    # Slow: a round for every token or two.
    "speculation": drafts("draft-model", 1),
}


async def test_all_tiers_are_updated_at_once_and_no_request_fails(tmp_path: Path) -> None:
    async with installed(tmp_path, TIERS) as release:
        cluster = release.cluster
        cluster.lag_s = LAG_S
        await release.until_seen(1, 1)
        old = {name: each.pods for name, each in cluster.deployments.items()}
        load = Load([release], await plain_answers(release, QUESTIONS))
        async with load.running():
            await load.phase("before", release)
            cluster.apply(render(UPDATED))
            await cluster.until_complete()
            await release.until_seen(1, 1)
            after = await load.phase("after", release)
        assert after.num_accepted > 0
        for name, deployment in cluster.deployments.items():
            check_strategy(deployment)
            for pod in old[name]:
                check_end(pod)
        await cluster.stop()


def check_strategy(deployment: Deployment) -> None:
    """One more at a time and none fewer; of Redis, which does not share its address, none more."""
    assert deployment.num_created == 2, deployment.name
    is_redis = deployment.name == REDIS
    assert deployment.most_pods == (1 if is_redis else 2), deployment.name
    assert deployment.least_ready == (0 if is_redis else 1), deployment.name


def check_end(pod: Pod) -> None:
    """`preStop`, SIGTERM and a good exit, well within the grace period."""
    at = {event.what.partition(" with ")[0].split(" ", 1)[-1]: event.at for event in pod.events}
    hook = pod.spec["spec"]["containers"][0].get("lifecycle", {}).get("preStop")
    pause = hook["sleep"]["seconds"] if hook else 0
    told = at["told to stop"] - at["terminating"]
    assert told >= pause and (pause > LAG_S) == pod.name.startswith(COORDINATOR)
    assert set(pod.exit_codes.values()) == {0}, pod.log
    assert at["ended"] - at["terminating"] < pod.spec["spec"]["terminationGracePeriodSeconds"]


@pytest.mark.long
async def test_answers_longer_than_a_drain_are_resumed_at_the_next_coordinator(
    tmp_path: Path,
) -> None:
    values = {**TIERS, "coordinator": {"drainSeconds": 0}}
    async with installed(tmp_path, values) as release:
        cluster = release.cluster
        cluster.lag_s = LAG_S
        await release.until_seen(1, 1)
        await release.until_recorded()
        expected = await ask_grpc([release.grpc_address], LONG)
        over_http = [asyncio.create_task(ask_on(release, f"http-{n}")) for n in range(2)]
        over_grpc = asyncio.create_task(ask_grpc([release.grpc_address], LONG))

        async def all_run() -> bool:
            return bool((await release.status())["num_running"] == 3)

        await soon(all_run, "the answers have begun")
        updated = {**values["coordinator"], "podAnnotations": {"update": "1"}}
        cluster.apply(render({**values, "coordinator": updated}))
        await cluster.until_complete()
        check_equal(await over_grpc, expected, "over gRPC")
        for task in over_http:
            found = await task
            assert (found.text, found.num_breaks) == (expected.text, 1)
        await cluster.stop()


class Resumed(NamedTuple):
    """An answer that may have come in several streams."""

    text: str
    num_breaks: int


async def ask_on(release: Release, request_id: str) -> Resumed:
    """As the README says: where a stream breaks off, the same POST with the last event's id."""
    body = {**LONG, "stream": True, "request_id": request_id}
    text, last_id, num_breaks = "", "", 0
    while num_breaks < 10:
        headers = {"last-event-id": last_id} if last_id else {}
        async with (
            http_client(release.url) as client,
            client.stream("POST", "/v1/completions", json=body, headers=headers) as response,
        ):
            if response.status_code == 503:
                await asyncio.sleep(float(response.headers["retry-after"]))
                continue
            assert response.status_code == 200, (await response.aread()).decode()
            async for line in response.aiter_lines():
                name, _, value = line.partition(": ")
                if (name, value) == ("data", "[DONE]"):
                    return Resumed(text, num_breaks)
                if name == "data" and "error" in (event := json.loads(value)):
                    break
                if name == "data":
                    text += "".join(choice["text"] for choice in event["choices"])
                if name == "id":
                    last_id = value
        num_breaks += 1
    raise AssertionError("it breaks off again and again")


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_draft_that_hangs_is_left_alone_and_started_again(tmp_path: Path) -> None:
    # As rendered: readiness fails in 2 periods of 2 s, liveness in 3 of 10 s, then it is killed.
    async with installed(tmp_path, TIERS, speed=1) as release:
        cluster = release.cluster
        await release.until_seen(1, 1)
        (pod,) = cluster.deployments[POOL].pods
        load = Load([release], await plain_answers(release, QUESTIONS))
        async with load.running():
            await load.phase("before", release)
            hung = time.monotonic()
            pod.container().signal(signal.SIGSTOP)
            await cluster.until(lambda: pod.num_restarts == 1, "it is started again")
            await cluster.until_complete()
            await release.until_seen(1, 1)
            after = await load.phase("after", release)
        assert after.num_accepted > 0
        at = {event.what: event.at - hung for event in pod.events}
        assert 2 < at["draft not ready"] < 10
        # A probe that times out takes its 5 s, and the next one comes 10 s behind its beginning.
        assert 20 < at["draft failed its liveness probe"] < 50
        (killed,) = [what for what in at if "killed" in what]
        grace = pod.spec["spec"]["terminationGracePeriodSeconds"]
        assert grace <= at[killed] - at["draft failed its liveness probe"] < grace + 10
