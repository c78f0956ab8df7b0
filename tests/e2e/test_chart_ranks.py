"""A target whose model two ranks share, each a pod of a StatefulSet: installed, asked, stopped."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from answers import OFF, Body, ask, check_equal, drafts
from chart_release import SPEED, Release, needs_cluster
from observed import soon
from tiny_models import save_checkpoint

from tests.chart.rendering import render
from tests.cluster.cluster import running_cluster

pytestmark = [needs_cluster, pytest.mark.long, pytest.mark.timeout(600)]

GROUP = "paceline-target-0"
NUM_ANSWERS = 8
VALUES: dict[str, Any] = {
    "target": {
        "tensorParallelSize": 2,
        "groupKind": "StatefulSet",
        "settings": {"model": "/var/cache/paceline/tiny", "kv_cache_tokens": 4096},
        "cache": {"existingClaim": "models"},
        "resources": {"requests": {"cpu": "1"}},
    },
    "drafts": {"default": {"settings": {"drafter": "suffix"}}},
}
BODY: Body = {
    "prompt": "one two three, one two three, one",
    "ignore_eos": True,
    "max_tokens": 60,
    "temperature": 0.7,
    "seed": 5,
}


async def test_a_group_of_two_ranks_answers_as_one_target_and_drains_as_one(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path, SPEED) as cluster:
        for file in save_checkpoint(cluster.disk("models") / "tiny").iterdir():
            file.chmod(0o644)
        release = Release(cluster, render(VALUES))
        cluster.apply(release.manifests)
        await cluster.until_complete()
        await release.until_seen(1, 1)
        plain = await ask(release, {**BODY, "speculation": OFF})
        bodies = [{**BODY, "speculation": drafts("suffix", 4)}] * NUM_ANSWERS
        asking = [asyncio.create_task(ask(release, body)) for body in bodies]

        async def all_run() -> bool:
            (target,) = [w for w in (await release.status())["workers"] if w["role"] == "target"]
            return bool(target["num_sequences"]) or all(task.done() for task in asking)

        await soon(all_run, "the answers have begun")
        ranks = cluster.stateful_sets[GROUP].pods
        cluster.scale(GROUP, 0)
        for task in asking:
            check_equal(await task, plain, "with drafts, from a group that was told to stop")
        await cluster.until_complete(GROUP)
        assert [pod.exit_codes for pod in ranks] == [{"target": 0}] * 2
        await cluster.stop()
