"""A cluster of one node that runs what `helm template` renders, as processes of this machine.

    async with running_cluster(folder) as cluster:
        cluster.apply(render(values))
        await cluster.until_complete()
        cluster.scale("paceline-draft-default", 3)
        cluster.apply([secret("keys", {"keys": "…"})])

There is no scheduler, no image, no admission; objects that need controllers of others do nothing.
Memory is not limited: `check` compares what processes have held with the limits. NetworkPolicies
keep nothing away: `policies` compares what pods have connected to with them.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from authority import Authority
from kubernetes_api import KubernetesApi

from tests.cluster.deployments import Deployment
from tests.cluster.environment import quantity
from tests.cluster.network import Network, Sandbox
from tests.cluster.objects import NAMESPACE, Object, Objects
from tests.cluster.pod import Pod
from tests.cluster.services import Proxies, Service, hosts_file
from tests.cluster.starting import Node
from tests.cluster.stateful_sets import StatefulSet
from tests.cluster.volumes import CLAIMS

STORED = {"ConfigMap", "PersistentVolumeClaim", "Role", "RoleBinding", "Secret", "ServiceAccount"}
WITHOUT_EFFECT = {
    "HorizontalPodAutoscaler",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "PodMonitor",
    "PrometheusRule",
    "ScaledObject",
    "ServiceMonitor",
}
PATIENCE_S = 240.0
"""Far more than anything here takes on a busy machine."""


class Cluster:
    """What runs now; made by `running_cluster`."""

    def __init__(
        self, node: Node, api: KubernetesApi, group: asyncio.TaskGroup, changed: asyncio.Event
    ) -> None:
        self.api = api
        self.objects = node.objects
        self.deployments: dict[str, Deployment] = {}
        self.stateful_sets: dict[str, StatefulSet] = {}
        self.services: dict[str, Service] = {}
        self.pods: list[Pod] = []
        """All that there were."""
        self.lag_s = 0.0
        """How much later than the slices proxies know of a change."""
        self.changed = changed
        self._node = node
        self._group = group
        self._proxies = Proxies(node.network, self._sandbox_of)
        self._lives: list[asyncio.Task[None]] = []
        self._hosts = ""

    # What one tells it

    def apply(self, items: Iterable[Object]) -> None:
        """Create or replace objects; hooks are left out."""
        for item in items:
            if not _annotation(item, "hook"):
                self._apply(item)
        self._refresh()

    def delete(self, kind: str, name: str) -> None:
        """Take a stored object away."""
        self.objects.delete(kind, name)
        self._refresh()

    def disk(self, claim: str) -> Path:
        """The folder behind a claim of a disk, which is there from now on."""
        self._apply({"kind": "PersistentVolumeClaim", "metadata": {"name": claim}})
        path = self._node.folder / CLAIMS / claim
        path.mkdir(parents=True)
        return path

    def scale(self, name: str, replicas: int) -> None:
        """As `kubectl scale`."""
        self._controllers[name].scale(replicas)
        self.changed.set()

    async def run_hooks(self, items: Iterable[Object], event: str) -> list[Pod]:
        """As Helm runs its hooks: by weight, and pods to their end, up to the first that fails."""
        hooks = [item for item in items if event in _annotation(item, "hook").split(",")]
        ended: list[Pod] = []
        for item in sorted(hooks, key=lambda hook: int(_annotation(hook, "hook-weight") or 0)):
            if item["kind"] != "Pod":
                self._apply(item)
                continue
            pod = self._make(item["metadata"]["name"], item)
            ended.append(pod)
            await self.until(lambda: ended[-1].is_over, f"the end of {pod.name}")
            if any(pod.exit_codes.values()):
                break
        return ended

    # What one sees of it

    def address(self, service: str, port: str) -> str:
        """Where the node reaches a Service."""
        found = self.services[service]
        return f"{found.address}:{found.port(port)}"

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until something holds of pods."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}\n{self}"
            await asyncio.sleep(0.02)

    async def until_complete(self, *names: str) -> None:
        """Wait until Deployments and StatefulSets, all if none is named, are as they should be."""
        controllers = self._controllers
        watched = [controllers[name] for name in names or controllers]
        self.changed.set()
        await self.until(lambda: all(each.is_complete for each in watched), "complete")

    def __str__(self) -> str:
        """For a failed test."""
        began = min((pod.events[0].at for pod in self.pods if pod.events), default=0.0)
        lines = []
        for pod in self.pods:
            lines += [f"{pod.name}:"]
            lines += [f"  {event.at - began:7.2f} {event.what}" for event in pod.events]
            lines += [f"  | {line}" for line in pod.log.splitlines()[-10:]]
        return "\n".join(lines)

    # What it does by itself

    @property
    def _controllers(self) -> dict[str, Deployment | StatefulSet]:
        return {**self.deployments, **self.stateful_sets}

    def _apply(self, item: Object) -> None:
        kind, name = item["kind"], item["metadata"]["name"]
        if kind in STORED:
            self.objects.put(item)
        elif kind == "Deployment":
            if name in self.deployments:
                self.deployments[name].item = item
            else:
                self.deployments[name] = Deployment(item, self._make)
        elif kind == "StatefulSet":
            if name in self.stateful_sets:
                self.stateful_sets[name].item = item
            else:
                self.stateful_sets[name] = StatefulSet(item, self._make)
        elif kind == "Service":
            if name in self.services:
                self.services[name].item = item
            else:
                self.services[name] = Service(item, self._node.network)
        elif kind == "Pod":
            self._make(name, item)
        else:
            assert kind in WITHOUT_EFFECT, f"a {kind}, which nobody here knows"

    def _make(self, name: str, template: Object) -> Pod:
        pod = Pod(self._node, name, template)
        pod.write_hosts(self._hosts)
        self.pods.append(pod)
        self._lives.append(self._group.create_task(pod.live()))
        return pod

    def _sandbox_of(self, address: str) -> Sandbox | None:
        found = (pod.sandbox for pod in self.pods if pod.address == address)
        return next(found, None)

    def _refresh(self) -> None:
        for pod in self.pods:
            if not pod.is_over:
                pod.refresh_volumes()
        self.changed.set()

    async def control(self) -> None:
        """What the controllers of Kubernetes do, whenever something has changed."""
        while True:
            await self.changed.wait()
            self.changed.clear()
            for controller in self._controllers.values():
                controller.reconcile()
            alive = [pod for pod in self.pods if not pod.is_over]
            for service in self.services.values():
                if (written := service.write_slice(alive)) is not None:
                    self.api.put_slice(written)
                    asyncio.get_running_loop().call_later(self.lag_s, service.hear)
            self._hosts = hosts_file(self.services.values())
            for pod in alive:
                pod.write_hosts(self._hosts)
            await self._proxies.listen(self.services.values())

    async def stop(self) -> None:
        """Scale everything to nothing; every pod has to end in order, and in its limits."""
        for name in self._controllers:
            self.scale(name, 0)
        await self.until_complete()
        self.check()

    def check(self) -> None:
        """Whether every pod that has ended did so by itself, in order, and within its limits."""
        for pod in self.pods:
            told = [event.what for event in pod.events]
            assert not [what for what in told if "killed after" in what], f"{pod.name}: {told}"
            assert pod.num_restarts == 0, f"{pod.name}: {told}\n{pod.log}"
            if pod.is_terminating:
                assert set(pod.exit_codes.values()) <= {0}, f"{pod.name}: {told}\n{pod.log}"
            for spec in pod.spec["spec"]["containers"]:
                limit = spec.get("resources", {}).get("limits", {}).get("memory", "1Ti")
                assert pod.memory_bytes.get(spec["name"], 0) < quantity(limit), pod.name

    def close(self) -> None:
        """End all at once."""
        self._proxies.close()
        for life in self._lives:
            life.cancel()


@asynccontextmanager
async def running_cluster(folder: Path, speed: float = 1) -> AsyncIterator[Cluster]:
    """An empty cluster; all that runs in it ends with it, at once. `speed`: see `Node`."""
    authority, objects = Authority(folder, "cluster-ca"), Objects()
    changed = asyncio.Event()
    with Network() as network:
        async with _api(network, objects, authority) as api, asyncio.TaskGroup() as group:
            where = {
                "KUBERNETES_SERVICE_HOST": network.node,
                "KUBERNETES_SERVICE_PORT": str(api.port),
            }
            ca = _text(authority.ca_file)
            node = Node(folder, network, objects, where, ca, speed, changed.set)
            cluster = Cluster(node, api, group, changed)
            controllers = group.create_task(cluster.control())
            try:
                yield cluster
            finally:
                controllers.cancel()
                cluster.close()


def _api(network: Network, objects: Objects, authority: Authority) -> KubernetesApi:
    """An API server on the node that lets in whom the Roles let in."""

    def access(token: str, verb: str, namespace: str) -> int:
        code = objects.access(token, verb, "discovery.k8s.io", "endpointslices")
        return 403 if code == 200 and namespace != NAMESPACE else code

    api = KubernetesApi()
    api.host, api.access = network.node, access
    api.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    api.tls.load_cert_chain(*authority.issue("api-server", network.node))
    return api


def _annotation(item: Object, name: str) -> str:
    return str(item["metadata"].get("annotations", {}).get(f"helm.sh/{name}", ""))


def _text(path: str) -> str:
    return Path(path).read_text()
