"""Services: their EndpointSlices, what their names mean in pods, and their proxies.

Slices have the labels of their Service, and of every pod that it selects the conditions `ready`,
`serving` and `terminating`, as the controllers of Kubernetes write them. The address of a Service
that has one leads to a ready pod for every new connection, which comes there from the address of
the caller. Proxies hear of changes `lag_s` later than the slices say them.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterable
from typing import Any

from kubernetes_objects import endpoint, endpoint_slice

from tests.cluster.network import Network, Sandbox, open_socket
from tests.cluster.objects import NAMESPACE, Object, selects
from tests.cluster.pod import Pod

Address = tuple[str, int]


class Service:
    """One Service."""

    def __init__(self, item: Object, network: Network) -> None:
        self.item = item
        is_headless = item["spec"].get("clusterIP") == "None"
        self.address = "" if is_headless else network.service_address()
        self.slice: Object = {}
        """As last written."""
        self.backends: dict[str, list[Address]] = {}
        """Where its proxies send new connections, by the name of the port."""

    @property
    def name(self) -> str:
        return str(self.item["metadata"]["name"])

    @property
    def ports(self) -> list[Object]:
        return [{"name": "", **port} for port in self.item["spec"]["ports"]]

    def port(self, name: str) -> int:
        """Its number."""
        return next(int(port["port"]) for port in self.ports if port["name"] == name)

    def write_slice(self, pods: Iterable[Pod]) -> Object | None:
        """The slice of these pods; None: as before."""
        mine = [pod for pod in pods if selects(self.item["spec"]["selector"], pod.labels)]
        mine = [pod for pod in mine if pod.address and not pod.is_over]
        endpoints = []
        for pod in mine:
            ready = pod.is_ready and not pod.is_terminating
            if self.item["spec"].get("publishNotReadyAddresses"):
                ready = True
            made = endpoint(
                pod.address,
                uid=pod.uid,
                ready=ready,
                serving=pod.is_ready,
                terminating=pod.is_terminating,
            )
            made["targetRef"] |= {"namespace": NAMESPACE, "name": pod.name}
            if pod.spec["spec"].get("subdomain") == self.name:
                made["hostname"] = pod.spec["spec"]["hostname"]
            endpoints.append({**made, "nodeName": "node"})
        ports = [
            {
                "name": port["name"],
                "port": _target(port, mine[0]) if mine else port["port"],
                "protocol": port.get("protocol", "TCP"),
                **({"appProtocol": port["appProtocol"]} if "appProtocol" in port else {}),
            }
            for port in self.ports
        ]
        labels = dict(self.item["metadata"].get("labels", {}))
        labels["endpointslice.kubernetes.io/managed-by"] = "endpointslice-controller.k8s.io"
        if not self.address:
            labels["service.kubernetes.io/headless"] = ""
        found = endpoint_slice(
            f"{self.name}-slice",
            endpoints,
            service=self.name,
            namespace=NAMESPACE,
            ports=ports,
            labels=labels,
        )
        if found == self.slice:
            return None
        self.slice = found
        return found

    def hear(self) -> None:
        """Let its proxies do as the slice says now: who is ready, else who still serves."""
        found = self.slice["endpoints"]
        chosen = [each for each in found if each["conditions"]["ready"]]
        chosen = chosen or [each for each in found if each["conditions"]["serving"]]
        hosts = [each["addresses"][0] for each in chosen]
        self.backends = {
            port["name"]: [(host, port["port"]) for host in hosts] for port in self.slice["ports"]
        }

    def names(self) -> list[tuple[str, str]]:
        """Addresses and what they are called: pods as it is, and some by names of their own."""
        if self.address:
            return [(self.address, self.name)]
        found = [each for each in self.slice.get("endpoints", []) if each["conditions"]["ready"]]
        pods = [each for each in found if "hostname" in each]
        return [
            *((each["addresses"][0], self.name) for each in found),
            *((each["addresses"][0], f"{each['hostname']}.{self.name}") for each in pods),
        ]


def hosts_file(services: Iterable[Service]) -> str:
    """What all names mean, as the cluster's DNS would say it."""
    ends = ("", f".{NAMESPACE}", f".{NAMESPACE}.svc", f".{NAMESPACE}.svc.cluster.local")
    return "".join(
        f"{address} {' '.join(name + end for end in ends)}\n"
        for service in services
        for address, name in service.names()
    )


class Proxies:
    """The listeners at the addresses of Services."""

    def __init__(self, network: Network, sandbox_of: Callable[[str], Sandbox | None]) -> None:
        self._network = network
        self._sandbox_of = sandbox_of
        """The pod with an address; None: the node."""
        self._servers: dict[Address, asyncio.Server] = {}
        self._connections: set[asyncio.Task[None]] = set()

    async def listen(self, services: Iterable[Service]) -> None:
        """Have a listener for each port of each Service that has an address."""
        for service in services:
            for port in service.ports if service.address else ():
                at = (service.address, int(port["port"]))
                if at not in self._servers:
                    self._servers[at] = await self._serve(at, service, port["name"])

    def close(self) -> None:
        """End all."""
        for server in self._servers.values():
            server.close()
        for task in self._connections:
            task.cancel()

    async def _serve(self, at: Address, service: Service, port: str) -> asyncio.Server:
        listener = open_socket(self._network.proxies)
        listener.bind(at)

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            with contextlib.suppress(asyncio.CancelledError):
                await self._relay(reader, writer, service.backends.get(port, []))

        return await asyncio.start_server(connected, sock=listener)

    async def _relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, backends: list[Address]
    ) -> None:
        back: Any = None
        outgoing: Any = None
        try:
            if backends:
                caller, _ = writer.get_extra_info("peername")
                outgoing = open_socket(self._sandbox_of(caller))
                await asyncio.get_running_loop().sock_connect(outgoing, random.choice(backends))
                there, back = await asyncio.open_connection(sock=outgoing)
                await asyncio.gather(_copy(reader, back), _copy(there, writer))
        except OSError:
            pass  # as the caller sees it: the connection breaks off
        finally:
            for each in (writer, back):
                if each is not None:
                    each.transport.abort()
            if outgoing is not None and back is None:
                outgoing.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    sink.write_eof()


def _target(port: Object, pod: Pod) -> int:
    target = port.get("targetPort", port["port"])
    if isinstance(target, int):
        return target
    named = [
        item["containerPort"]
        for box in pod.spec["spec"]["containers"]
        for item in box.get("ports", [])
        if item.get("name") == target
    ]
    return int(named[0])
