"""Fixtures of the integration tests: servers that run for one test."""

from collections.abc import AsyncIterator, Iterator

import pytest
from http_service import Service, scripted_service
from redis_server import ManagedRedis


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
