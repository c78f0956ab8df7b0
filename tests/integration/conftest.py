"""Fixtures of the integration tests: servers that run for one test."""

from collections.abc import Iterator

import pytest
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
