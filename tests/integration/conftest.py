"""Fixtures of the integration tests: servers that run for one test."""

from collections.abc import AsyncIterator, Iterator

import pytest
from coordinator_server import CoordinatorServer
from http_service import Service, scripted_service
from redis_server import ManagedRedis
from worker_servers import Cluster, cluster, draft_server, target_server

from paceline.channel import open_channel
from paceline.v1.coordinator_pb2_grpc import CoordinatorServiceStub


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
