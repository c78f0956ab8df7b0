"""A target of several ranks: which pods make a group, how they meet, and who finds them."""

from typing import Any

import pytest

from tests.chart.kubernetes_schemas import VERSIONS, faults_of
from tests.chart.rendering import CHART, Manifests, Object, env_of, needs_helm, render

pytestmark = needs_helm

RANKS = CHART / "ci" / "ranks-values.yaml"
LWS = "leaderworkerset.x-k8s.io/v1"
RANK_LABELS = {
    "StatefulSet": "apps.kubernetes.io/pod-index",
    "LeaderWorkerSet": "leaderworkerset.sigs.k8s.io/worker-index",
}


def groups(replicas: int = 1, kind: str = "auto", apis: tuple[str, ...] = ()) -> Manifests:
    values: dict[str, Any] = {"target": {"replicas": replicas, "groupKind": kind}}
    return render(values, files=(RANKS,), api_versions=apis)


def spec_of(manifests: Manifests, kind: str, name: str) -> Object:
    spec: Object = manifests.one(kind, name)["spec"]
    return spec


def test_a_target_of_four_ranks_and_two_pools_are_these_objects() -> None:
    found = {
        (item["kind"], item["metadata"]["name"].removeprefix("paceline-")) for item in groups()
    }
    names = ("coordinator", "target", "draft-eagle", "draft-small", "redis")
    every = ("NetworkPolicy", "Service", "ServiceAccount")
    assert found == {
        *((kind, name) for kind in every for name in names),
        *(("PodDisruptionBudget", name) for name in names if name != "redis"),
        *(("Deployment", name) for name in names if name != "target"),
        ("StatefulSet", "target-0"),
        ("Service", "target-ranks"),
        ("Role", "discovery"),
        ("RoleBinding", "discovery"),
        ("ConfigMap", "smoke"),
        ("Pod", "smoke"),
    }


@pytest.mark.parametrize(
    "kind, apis, rendered",
    [
        ("auto", (), "StatefulSet"),
        ("auto", (LWS,), "LeaderWorkerSet"),
        ("StatefulSet", (LWS,), "StatefulSet"),
        ("LeaderWorkerSet", (), "LeaderWorkerSet"),
    ],
)
def test_groups_are_of_the_kind_that_the_cluster_or_the_values_say(
    kind: str, apis: tuple[str, ...], rendered: str
) -> None:
    manifests = groups(kind=kind, apis=apis)
    assert {item["kind"] for item in manifests.workloads()} == {"Deployment", rendered}
    service = spec_of(manifests, "Service", "paceline-target")
    # Only rank 0 is a worker to the coordinator.
    assert service["selector"][RANK_LABELS[rendered]] == "0"


def test_each_group_is_a_stateful_set_whose_ranks_start_at_once() -> None:
    manifests = groups(replicas=3)
    sets = manifests.of_kind("StatefulSet")
    assert [item["metadata"]["name"] for item in sets] == [f"paceline-target-{n}" for n in range(3)]
    for number, item in enumerate(sets):
        spec = item["spec"]
        assert spec["replicas"] == 4
        assert spec["podManagementPolicy"] == "Parallel"
        assert spec["serviceName"] == "paceline-target-ranks"
        assert spec["selector"]["matchLabels"]["paceline-group"] == str(number)
        assert spec["template"]["metadata"]["labels"]["paceline-group"] == str(number)


def test_ranks_find_rank_0_of_their_group_before_anyone_is_ready() -> None:
    manifests = groups(replicas=2)
    for name, pod in manifests.pods():
        if not name.startswith("paceline-target-"):
            continue
        env = env_of(pod)
        assert env["MASTER_ADDR"] == f"{name}-0.paceline-target-ranks.demo.svc"
        assert env["WORLD_SIZE"] == env["PACELINE_TENSOR_PARALLEL_SIZE"] == "4"
        label = RANK_LABELS["StatefulSet"]
        assert env["RANK"] == {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}
    ranks = spec_of(manifests, "Service", "paceline-target-ranks")
    assert ranks["publishNotReadyAddresses"] is True and ranks["clusterIP"] == "None"


def test_the_coordinator_does_not_take_the_ranks_service_for_one_of_targets() -> None:
    labels = groups().one("Service", "paceline-target-ranks")["metadata"]["labels"]
    assert labels["app.kubernetes.io/component"] == "target-ranks"


def test_no_group_is_replaced_rank_by_rank() -> None:
    for item in groups(replicas=2).of_kind("StatefulSet"):
        assert item["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_a_leader_worker_set_is_one_object_for_all_groups() -> None:
    spec = spec_of(groups(2, apis=(LWS,)), "LeaderWorkerSet", "paceline-target-ranks")
    template = spec["leaderWorkerTemplate"]
    assert (spec["replicas"], template["size"]) == (2, 4)
    assert template["restartPolicy"] == "RecreateGroupOnPodRestart"
    pod = template["workerTemplate"]
    env = env_of(pod)
    group = {"fieldPath": "metadata.labels['leaderworkerset.sigs.k8s.io/group-index']"}
    assert env["GROUP_INDEX"] == {"fieldRef": group}
    assert env["MASTER_ADDR"] == (
        "paceline-target-ranks-$(GROUP_INDEX).paceline-target-ranks.demo.svc"
    )
    names = [item["name"] for item in pod["spec"]["containers"][0]["env"]]
    assert names.index("GROUP_INDEX") < names.index("MASTER_ADDR")


def test_kubernetes_admits_the_pods_of_a_leader_worker_set() -> None:
    manifests = groups(apis=(LWS,))
    lws = manifests.one("LeaderWorkerSet", "paceline-target-ranks")
    template = lws["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    labels = template["metadata"]["labels"]
    spec = {"serviceName": "any", "selector": {"matchLabels": labels}, "template": template}
    like = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "a"}, "spec": spec}
    assert [fault for version in VERSIONS for fault in faults_of(like, version)] == []


def test_ranks_may_reach_one_another_on_all_ports() -> None:
    policy = spec_of(groups(), "NetworkPolicy", "paceline-target")
    (among,) = (rule for rule in policy["ingress"] if "ports" not in rule)
    assert among["from"][0]["podSelector"]["matchLabels"] == policy["podSelector"]["matchLabels"]


def test_ranks_have_a_gpu_each_and_room_to_share_memory() -> None:
    pod = dict(groups().pods())["paceline-target-0"]
    (box,) = pod["spec"]["containers"]
    assert box["resources"]["limits"]["nvidia.com/gpu"] == 1
    (shm,) = (item for item in pod["spec"]["volumes"] if item["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert "topologySpreadConstraints" not in pod["spec"]
