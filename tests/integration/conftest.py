"""Fixtures of the integration tests: servers that run for one test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from coordinator_server import CoordinatorServer
from http_service import Service, scripted_service
from kubernetes_api import KubernetesApi
from redis_server import ManagedRedis
from waiting import SOON_S
from worker_servers import Cluster, cluster, draft_server, target_server

from paceline.channel import open_channel
from paceline.v1.coordinator_pb2_grpc import CoordinatorServiceStub


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that a request names is waited for however busy the machine is.

    So nothing that is counted depends on that. A draft that dies is noticed all the same.
    """
    monkeypatch.setattr("coordinator.speculation.EXACT_TIMEOUT_S", SOON_S)


@pytest.fixture
def redis_server() -> Iterator[ManagedRedis]:
    """A Redis server of this test's own."""
    with ManagedRedis() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: ManagedRedis) -> str:
    """Where it is."""
    return redis_server.url


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """The HTTP service with a scripted generator behind it."""
    async with scripted_service() as service:
        yield service


@pytest.fixture
async def running() -> AsyncIterator[Cluster]:
    """A target and a draft that proposes what the target says."""
    async with cluster([target_server()], [draft_server("self")]) as running:
        await running.until_ready()
        yield running


@pytest.fixture
async def server(running: Cluster) -> AsyncIterator[CoordinatorServer]:
    """The gRPC service in front of them."""
    server = CoordinatorServer(running)
    await server.start()
    yield server
    await server.kill()


@pytest.fixture
async def stub(server: CoordinatorServer) -> AsyncIterator[CoordinatorServiceStub]:
    """A client of it."""
    async with open_channel(server.address) as channel:
        yield CoordinatorServiceStub(channel)


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubernetesApi]:
    """An API server of Kubernetes that the kubeconfig names; whoever follows it pauses shortly."""
    following = "paceline.workers.discovery.kubernetes_watch"
    monkeypatch.setattr(f"{following}.FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(f"{following}.LONGEST_PAUSE_S", 0.05)
    async with KubernetesApi() as server:
        path = str(server.write_kubeconfig(tmp_path / "kubeconfig"))
        monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", path)
        yield server
