"""An engineer with the values for CPUs scales drafts from none to three and back under load."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from chart_release import COORDINATOR, DRAFT, REDIS, TARGET, Release, installed, needs_cluster
from pods import QUESTIONS, Load, plain_answers

from tests.chart.rendering import CHART
from tests.cluster.pod import Pod
from tests.cluster.policies import Connection, allows, connections

pytestmark = [needs_cluster, pytest.mark.timeout(600)]

POOL = "paceline-draft-small"
# Tables instead of models, and no drafts yet; all else is as in the file.
VALUES: dict[str, Any] = {
    "networkPolicy": {"egress": {"enabled": True}},
    "target": {"settings": {"model": "table:7", "dtype": "float32"}},
    "drafts": {
        "default": {"replicas": 0},
        "small": {"replicas": 0, "settings": {"model": "table:7:0.2"}},
    },
}


async def test_drafts_come_and_go_and_only_the_accepted_tokens_tell(tmp_path: Path) -> None:
    async with installed(tmp_path, VALUES, [CHART / "ci" / "cpu-values.yaml"]) as release:
        cluster = release.cluster
        await release.until_seen(2, 0)
        load = Load([release], await plain_answers(release, QUESTIONS))
        async with load.running():
            before = await load.phase("no draft", release)
            cluster.scale(POOL, 3)
            await cluster.until_complete(POOL)
            await release.until_seen(2, 3)
            drafted = await load.phase("three drafts", release)
            check_policies(release)
            cluster.scale(POOL, 0)
            await cluster.until_complete(POOL)
            await release.until_seen(2, 0)
            after = await load.phase("no draft again", release)
        assert (before.num_drafts, drafted.num_drafts, after.num_drafts) == (0, 3, 0)
        assert drafted.num_accepted > before.num_accepted == after.num_accepted == 0
        created = {name: each.num_created for name, each in cluster.deployments.items()}
        assert created == {COORDINATOR: 1, TARGET: 2, REDIS: 1, POOL: 3, DRAFT: 0}
        await cluster.stop()


def check_policies(release: Release) -> None:
    """What pods have connected to, the policies let them, and to nothing else of ours."""
    policies = release.manifests.of_kind("NetworkPolicy")
    seen = connections(release.cluster.pods)
    pairs = {(role(each.caller), role(each.called)) for each in seen}
    assert pairs == {("coordinator", other) for other in ("target", "draft", "redis")}
    assert [each for each in seen if not allows(policies, each)] == []
    pods = {role(pod): pod for pod in release.cluster.pods if not pod.is_over}
    ports = {
        name: next(each.port for each in seen if role(each.called) == name) for _, name in pairs
    }
    for caller, called in itertools.product(("target", "draft", "redis"), ports):
        assert not allows(policies, Connection(pods[caller], pods[called], ports[called]))


def role(pod: Pod) -> str:
    return pod.labels["app.kubernetes.io/component"]
