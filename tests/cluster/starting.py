"""What the containers of a pod are started with: volumes, account, variables, mounts."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import container as containers
from tests.cluster.container import Container, Mount
from tests.cluster.environment import command, expanded, pod_field, variables
from tests.cluster.network import Network, Sandbox
from tests.cluster.objects import NAMESPACE, Object, Objects, token_of
from tests.cluster.volumes import Volumes

TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass(frozen=True)
class Node:
    """What all pods have from the machine that they run on."""

    folder: Path
    network: Network
    objects: Objects
    api: dict[str, str]
    """Variables that say where the API server is."""
    ca: str
    """Whom the API server's certificate is signed by."""
    speed: float
    """How much faster than rendered probes come one after the other; see `Probe.results`."""
    changed: Callable[[], None]
    """Called when a pod has changed."""


class Starting:
    """Of one pod, which has its address already."""

    def __init__(
        self, node: Node, name: str, uid: str, spec: Object, sandbox: Sandbox, folder: Path
    ) -> None:
        self._node = node
        self._spec = spec
        self._sandbox = sandbox
        self._folder = folder
        self._status = {
            "name": name,
            "namespace": NAMESPACE,
            "uid": uid,
            "node": "node",
            "address": sandbox.address,
            "host_address": node.network.node,
        }
        self.volumes = Volumes(folder / "volumes", spec, node.objects, self._field)

    def prepare(self) -> None:
        """Make the volumes; raises `NotThere`."""
        self.volumes.make()
        if self._has_token():
            files = {"token": token_of(self._account), "ca.crt": self._node.ca}
            files["namespace"] = NAMESPACE
            content = {name: (text.encode(), 0o644) for name, text in files.items()}
            self.volumes.add_account(content)

    def start(self, spec: Object) -> Container:
        """One of its containers; raises `NotThere`."""
        given = {**containers.IMAGE, **self._node.api, "HOSTNAME": self._status["name"]}
        env = variables(spec, self._node.objects, self._field, given)
        mounts = [
            Mount(
                self.volumes.by_name[item["name"]],
                item["mountPath"],
                expanded(item.get("subPathExpr") or item.get("subPath", ""), env),
                bool(item.get("readOnly")),
            )
            for item in spec.get("volumeMounts", [])
        ]
        if self._has_token():
            mounts.append(Mount(self.volumes.account, TOKEN_FOLDER, is_read_only=True))
        log = self._folder / f"{spec['name']}.log"
        run = command(spec, env)
        return containers.start(spec, self._spec, run, env, mounts, self._sandbox, log)

    @property
    def _account(self) -> str:
        return str(self._spec["spec"].get("serviceAccountName", "default"))

    def _has_token(self) -> bool:
        is_default = self._account == "default"
        owner = {} if is_default else self._node.objects.get("ServiceAccount", self._account)
        by_account = owner.get("automountServiceAccountToken", True)
        return bool(self._spec["spec"].get("automountServiceAccountToken", by_account))

    def _field(self, path: str) -> str:
        return pod_field(self._spec, self._status, path)
