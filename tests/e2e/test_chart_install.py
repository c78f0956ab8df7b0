"""An engineer installs the chart and asks: what `helm template` renders runs, nothing else."""

import os
import shutil
from pathlib import Path

import pytest
from answers import OFF, FrontEnd, ask, check_equal
from chart_release import COORDINATOR, REDIS, SPEED, TARGET, Release, needs_cluster
from real_tokenizers import smollm2_directory

from tests.chart.rendering import Object, render
from tests.cluster.cluster import Cluster, running_cluster

pytestmark = [needs_cluster, pytest.mark.timeout(600)]

BODY = {
    "messages": [{"role": "user", "content": "Say the words: one two three, one two three."}],
    "max_tokens": 12,
    "temperature": 0,
}


async def test_an_engineer_installs_asks_and_lets_helm_test_it(tmp_path: Path) -> None:
    # A disk that has the default model already, which a pod would convert for half a minute.
    values = {"workerDefaults": {"cache": {"existingClaim": "models"}}}
    async with running_cluster(tmp_path, SPEED) as cluster:
        model = smollm2_directory()
        shutil.copytree(model, cluster.disk("models") / model.name, copy_function=os.link)
        await check_install(Release(cluster, render(values)))


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_an_install_without_any_values_converts_the_default_model(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, SPEED) as cluster:
        await check_install(Release(cluster, render()))


async def check_install(release: Release) -> None:
    cluster = release.cluster
    await install_backwards(release)
    plain = await ask(release, {**BODY, "speculation": OFF})
    assert plain.text.strip()
    for front_end in FrontEnd:
        answer = await ask(release, BODY, front_end)
        check_equal(answer, plain, front_end.value)
    (passed,) = await cluster.run_hooks(release.manifests, "test")
    assert passed.exit_codes == {"smoke": 0}, passed.log
    assert "all texts are equal" in passed.log
    cluster.scale(TARGET, 0)
    await cluster.until_complete(TARGET)
    (failed,) = await cluster.run_hooks(release.manifests, "test")
    assert failed.exit_codes == {"smoke": 1}, failed.log
    assert "503" in failed.log
    await cluster.stop()


async def install_backwards(release: Release) -> None:
    """Whoever needs another comes before it, and Redis last."""
    cluster = release.cluster
    parts = {item["metadata"]["name"]: item for item in release.manifests.workloads()}

    def install(*items: Object) -> None:
        cluster.apply(items)

    install(parts.pop(COORDINATOR))
    await cluster.until(lambda: says(cluster, "waits for ServiceAccount"), "the first pod waits")
    install(*(item for item in release.manifests if item not in parts.values()))
    await cluster.until(lambda: cluster.pods[0].is_started, "the coordinator is alive")
    assert not cluster.pods[0].is_ready
    redis = parts.pop(REDIS)
    install(*parts.values())
    await cluster.until_complete()
    assert "unreachable" in (await release.status())["session_store"]
    install(redis)
    await cluster.until_complete()
    await release.until_recorded()


def says(cluster: Cluster, words: str) -> bool:
    return any(words in event.what for pod in cluster.pods for event in pod.events)
