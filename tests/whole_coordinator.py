"""A coordinator in this process, put together as its `__main__` does."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
from plain_http import plain_client
from worker_servers import WorkerServer

from coordinator.admission import Limits
from coordinator.generator import Generator
from coordinator.http.app import create_app
from coordinator.http.server import HttpServer
from coordinator.metrics import Metrics
from coordinator.redis_access import PLAIN as NOTHING_SHOWN
from coordinator.redis_access import RedisAccess
from coordinator.servicer import SERVICE_NAME, CoordinatorServicer
from coordinator.session_store import open_session_store
from paceline.channel import PLAIN, Access
from paceline.server import GrpcServer
from paceline.server_security import OPEN, ServerSecurity
from paceline.v1.coordinator_pb2_grpc import add_CoordinatorServiceServicer_to_server
from paceline.workers.pool import WorkerPool


@dataclass
class Coordinator:
    """Both front ends on a generator of their own."""

    generator: Generator
    pool: WorkerPool
    http: HttpServer
    grpc_address: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.port}"

    @property
    def client(self) -> httpx.AsyncClient:
        return self.client_with()

    def client_with(self, **options: Any) -> httpx.AsyncClient:
        return plain_client(self.url, **options)


@asynccontextmanager
async def coordinator(
    targets: Sequence[WorkerServer],
    *,
    redis_url: str = "",
    redis_access: RedisAccess = NOTHING_SHOWN,
    security: ServerSecurity = OPEN,
    access: Access = PLAIN,
) -> AsyncIterator[Coordinator]:
    """One of these targets; it is ready when it has their tokenizer."""
    store = await open_session_store(redis_url, access=redis_access)
    pool = WorkerPool([target.address for target in targets], [], access)
    pool.start()
    generator = Generator(pool, store, Metrics(), Limits())
    if targets:
        await generator.load_tokenizer()
    app = create_app(generator, Metrics(), security.keys)
    http = HttpServer(app, "127.0.0.1", 0, security.http_context())
    http.start()
    servicer = CoordinatorServicer(generator, security.keys)
    add_service = partial(add_CoordinatorServiceServicer_to_server, servicer)
    server = GrpcServer(SERVICE_NAME, add_service, security=security)
    port = await server.start("127.0.0.1", 0)
    try:
        yield Coordinator(generator, pool, http, f"127.0.0.1:{port}")
    finally:
        await generator.drain(0)
        await asyncio.gather(server.stop(0), http.stop())
        await store.aclose()
