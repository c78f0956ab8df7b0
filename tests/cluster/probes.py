"""One probe of a container as the kubelet makes it from the node: what it asks, when, how often."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.cluster.container import Container
from tests.cluster.objects import Object

ALONE = [
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own each time
    ("grpc.enable_http_proxy", 0),
]


@dataclass(frozen=True)
class Probe:
    """What is rendered, with the defaults of Kubernetes."""

    spec: Object
    ports: dict[str, int]
    address: str

    @property
    def period_s(self) -> float:
        return float(self.spec.get("periodSeconds", 10))

    @property
    def timeout_s(self) -> float:
        return float(self.spec.get("timeoutSeconds", 1))

    @property
    def num_failures(self) -> int:
        """So many in a row mean bad."""
        return int(self.spec.get("failureThreshold", 3))

    @property
    def num_successes(self) -> int:
        """So many in a row mean good."""
        return int(self.spec.get("successThreshold", 1))

    async def results(self, container: Container, speed: float) -> AsyncIterator[bool | None]:
        """What counts after each time it was asked; None: as before. Ends when left.

        Asked so many times faster than rendered, it fails after as long as rendered all the same.
        """
        await asyncio.sleep(float(self.spec.get("initialDelaySeconds", 0)) / speed)
        row: list[bool] = []
        while True:
            began = time.monotonic()
            good = await self.ask(container)
            row = [*row, good] if row and row[-1] == good else [good]
            enough = self.num_successes if good else self.num_failures * speed
            yield good if len(row) >= enough else None
            # A ticker: a probe that takes long makes the next one come at once.
            took = time.monotonic() - began
            await asyncio.sleep(max(0.0, self.period_s / speed - took))

    async def ask(self, container: Container) -> bool:
        """Once."""
        with contextlib.suppress(
            TimeoutError, OSError, grpc.RpcError, aiohttp.ClientError, asyncio.IncompleteReadError
        ):
            async with asyncio.timeout(self.timeout_s):
                return await self._ask(container)
        return False

    async def _ask(self, container: Container) -> bool:
        if "grpc" in self.spec:
            return await self._grpc(self.spec["grpc"])
        if "httpGet" in self.spec:
            return await self._http(self.spec["httpGet"])
        if "tcpSocket" in self.spec:
            port = self._port(self.spec["tcpSocket"]["port"])
            _, writer = await asyncio.open_connection(self.address, port)
            writer.close()
            return True
        return await run_inside(container, self.spec["exec"]["command"]) == 0

    async def _grpc(self, asked: Object) -> bool:
        address = f"{self.address}:{self._port(asked['port'])}"
        async with grpc.aio.insecure_channel(address, ALONE) as channel:
            request = health_pb2.HealthCheckRequest(service=asked.get("service", ""))
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(request, timeout=self.timeout_s)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def _http(self, asked: Object) -> bool:
        scheme = asked.get("scheme", "HTTP").lower()
        url = f"{scheme}://{self.address}:{self._port(asked['port'])}{asked.get('path', '/')}"
        headers = {item["name"]: item["value"] for item in asked.get("httpHeaders", [])}
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers=headers, ssl=False, allow_redirects=False) as response,
        ):
            return 200 <= response.status < 400

    def _port(self, port: int | str) -> int:
        return self.ports[port] if isinstance(port, str) else port


async def run_inside(container: Container, command: list[str]) -> int:
    """Run a command in a container, as probes and hooks do; its exit status."""
    process = await asyncio.create_subprocess_exec(
        *container.command_inside(command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        return await process.wait()
    except asyncio.CancelledError:
        process.kill()
        raise


def probes_of(spec: Object, address: str) -> dict[str, Probe]:
    """Those of a container, by kind: startup, liveness, readiness."""
    ports: dict[str, Any] = {
        item["name"]: item["containerPort"] for item in spec.get("ports", []) if "name" in item
    }
    kinds = {kind: spec.get(f"{kind}Probe") for kind in ("startup", "liveness", "readiness")}
    return {kind: Probe(found, ports, address) for kind, found in kinds.items() if found}
