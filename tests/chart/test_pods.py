"""What every pod of the chart has: safe, startable, probed, and with time to end its answers."""

from typing import Any

import pytest

from paceline.server import STOP_GRACE_S
from paceline.telemetry.recorder import FLUSH_S
from tests.chart.rendering import Object, env_of, needs_helm, render

pytestmark = needs_helm

OURS = ["paceline-coordinator", "paceline-draft-default", "paceline-target"]


@pytest.fixture(params=[*OURS, "paceline-redis"])
def pod(request: pytest.FixtureRequest) -> Object:
    return pods()[request.param]


def pods() -> dict[str, Object]:
    return dict(render().pods())


def container(pod: Object) -> Object:
    (found,) = pod["spec"]["containers"]
    return found


def test_the_default_install_runs_one_of_each() -> None:
    assert set(pods()) == {*OURS, "paceline-redis"}
    assert all(item["spec"]["replicas"] == 1 for item in render().workloads())


def test_restricted_pod_security_admits_every_pod(pod: Object) -> None:
    context, own = pod["spec"]["securityContext"], container(pod)["securityContext"]
    assert context["runAsNonRoot"] is True and context["runAsUser"] > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert own["readOnlyRootFilesystem"] is True
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod["spec"])
    allowed = {"emptyDir", "secret", "configMap", "persistentVolumeClaim", "projected"}
    kinds = {kind for volume in pod["spec"]["volumes"] for kind in set(volume) - {"name"}}
    assert kinds <= allowed


def test_no_pod_gets_names_of_services_as_variables(pod: Object) -> None:
    # PACELINE_TARGET_PORT and the like would be unknown settings.
    assert pod["spec"]["enableServiceLinks"] is False


def test_only_the_coordinator_may_ask_the_api_server() -> None:
    may = {name for name, pod in pods().items() if pod["spec"]["automountServiceAccountToken"]}
    assert may == {"paceline-coordinator"}
    role = render().one("Role", "paceline-discovery")
    assert role["rules"] == [
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["get", "list", "watch"],
        }
    ]


@pytest.mark.parametrize("drain", [0, 25, 7.5, 900])
@pytest.mark.parametrize("name", OURS)
def test_a_pod_is_killed_only_after_all_that_it_may_take_to_end(name: str, drain: float) -> None:
    pod = dict(render({"defaults": {"drainSeconds": drain}, "drafts": {"default": {
        "drainSeconds": drain}}}).pods())[name]  # fmt: skip
    told = float(env_of(pod)["PACELINE_DRAIN_SECONDS"])
    stop = container(pod).get("lifecycle", {}).get("preStop", {})
    before = stop.get("sleep", {}).get("seconds", 0)
    assert told == drain
    assert (before > 0) == (name == "paceline-coordinator")
    assert (
        pod["spec"]["terminationGracePeriodSeconds"] >= before + told + STOP_GRACE_S + FLUSH_S + 2
    )


def test_kubernetes_without_sleep_waits_by_a_command() -> None:
    pod = dict(render(kube_version="1.29.0").pods())["paceline-coordinator"]
    stop = container(pod)["lifecycle"]["preStop"]
    assert stop == {"exec": {"command": ["python", "-c", "import time; time.sleep(5)"]}}


@pytest.mark.parametrize("name", OURS)
def test_probes_ask_the_health_port_for_life_and_for_the_service_by_name(name: str) -> None:
    box = container(pods()[name])
    port = int(env_of(pods()[name])["PACELINE_HEALTH_PORT"])
    startup, live, ready = (box[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness"))
    assert {item["name"]: item["containerPort"] for item in box["ports"]}["health"] == port
    assert startup["grpc"] == live["grpc"] == {"port": port}
    assert ready["grpc"]["port"] == port
    assert ready["grpc"]["service"] in (
        "paceline.v1.CoordinatorService", "paceline.v1.TargetService", "paceline.v1.DraftService"
    )  # fmt: skip
    assert live["timeoutSeconds"] >= 2


def test_a_start_may_take_as_long_as_the_values_say() -> None:
    pod = dict(render({"target": {"startupSeconds": 1801}}).pods())["paceline-target"]
    startup = container(pod)["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 1801
    target = render({"target": {"startupSeconds": 1801}}).one("Deployment", "paceline-target")
    grace = pod["spec"]["terminationGracePeriodSeconds"]
    assert target["spec"]["progressDeadlineSeconds"] > 1801 + grace


def test_a_coordinator_may_wait_for_the_first_target() -> None:
    objects = render({"target": {"startupSeconds": 1801}, "coordinator": {"startupSeconds": 60}})
    coordinator = objects.one("Deployment", "paceline-coordinator")
    grace = coordinator["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert coordinator["spec"]["progressDeadlineSeconds"] > 1801 + 60 + grace


@pytest.mark.parametrize(
    "resources, threads",
    [
        ({"requests": {"cpu": "4"}}, "4"),
        ({"requests": {"cpu": 3.9}}, "3"),
        ({"requests": {"cpu": "2500m"}}, "2"),
        ({"requests": {"cpu": "100m"}}, "1"),
        ({"requests": {"cpu": 16}}, "16"),
        ({"requests": {"cpu": None}, "limits": {"cpu": "6"}}, "6"),
        ({"requests": {"cpu": None}}, None),
    ],
)
def test_a_worker_has_as_many_threads_as_cpus(resources: Any, threads: str | None) -> None:
    pod = dict(render({"target": {"resources": resources}}).pods())["paceline-target"]
    assert env_of(pod).get("PACELINE_NUM_THREADS") == threads


def test_settings_become_variables_that_mean_the_same() -> None:
    values = {
        "target": {"settings": {"kv_cache_tokens": 12000000, "feature_layers": [1, 2, 30]}},
        "coordinator": {"settings": {"max_running_requests": 1000000}, "extraEnv": {"A": 1000000}},
    }
    pods = dict(render(values).pods())
    assert env_of(pods["paceline-target"])["PACELINE_KV_CACHE_TOKENS"] == "12000000"
    assert env_of(pods["paceline-target"])["PACELINE_FEATURE_LAYERS"] == "1,2,30"
    assert env_of(pods["paceline-coordinator"])["PACELINE_MAX_RUNNING_REQUESTS"] == "1000000"
    assert env_of(pods["paceline-coordinator"])["A"] == "1000000"


def test_accelerators_bring_their_image_taint_and_device() -> None:
    gpu = {"count": 2, "product": "NVIDIA-H100-80GB-HBM3"}
    pod = dict(render({"target": {"gpu": gpu}}).pods())["paceline-target"]
    assert container(pod)["image"].startswith("paceline-engine-cuda:")
    assert container(pod)["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert pod["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert pod["spec"]["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]
    assert env_of(pod)["PACELINE_DEVICE"] == "cuda"


def test_an_account_that_workloads_share_is_made_once() -> None:
    rendered = render({"defaults": {"serviceAccount": {"name": "shared"}}})
    assert [item["metadata"]["name"] for item in rendered.of_kind("ServiceAccount")] == ["shared"]
    assert {pod["spec"]["serviceAccountName"] for _, pod in rendered.pods()} == {"shared"}
