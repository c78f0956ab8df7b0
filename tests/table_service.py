"""A whole service on the table model in this process: workers, generator, HTTP and gRPC."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
from http_service import Event, parsed
from plain_http import plain_client
from scripted_generator import served
from worker_servers import Cluster, WorkerServer, cluster, draft_server, target_server

from coordinator.admission import Limits
from coordinator.servicer import SERVICE_NAME, CoordinatorServicer
from paceline.channel import open_channel
from paceline.server import GrpcServer
from paceline.v1 import coordinator_pb2 as pb
from paceline.v1.coordinator_pb2_grpc import (
    CoordinatorServiceStub,
    add_CoordinatorServiceServicer_to_server,
)


@dataclass
class TableService:
    """Both front ends of one generator."""

    running: Cluster
    url: str
    client: httpx.AsyncClient
    _grpc_port: int = 0

    @property
    def grpc_address(self) -> str:
        return f"127.0.0.1:{self._grpc_port}"

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        """A whole answer."""
        response = await self.client.post(path, json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def stream(self, path: str, **body: Any) -> list[Event]:
        """An answer as events, the closing one left out."""
        response = await self.client.post(path, json={**body, "stream": True})
        assert response.status_code == 200, response.text
        *events, done = parsed(response.content)
        assert done.data == "[DONE]", done
        return events

    async def generate(self, **fields: Any) -> list[pb.GenerateResponse]:
        """An answer in parts, over gRPC."""
        async with open_channel(self.grpc_address) as channel:
            call = CoordinatorServiceStub(channel).Generate(pb.GenerateRequest(**fields))
            return [part async for part in call]

    async def start_grpc(self) -> None:
        servicer = CoordinatorServicer(self.running.generator)
        self._server = GrpcServer(
            SERVICE_NAME, partial(add_CoordinatorServiceServicer_to_server, servicer)
        )
        self._grpc_port = await self._server.start("127.0.0.1", self._grpc_port)

    async def stop_grpc(self) -> None:
        await self._server.stop(0)

    async def restart_grpc(self) -> None:
        """End all calls, and serve again at the same address."""
        await self.stop_grpc()
        await self.start_grpc()


@asynccontextmanager
async def table_service(
    *,
    targets: Sequence[WorkerServer] = (),
    drafts: Sequence[WorkerServer] | None = None,
    limits: Limits | None = None,
    wait: bool = True,
) -> AsyncIterator[TableService]:
    """A service with these workers; where none are named, with one that runs the law `LAW`.

    With `wait` off it has no tokenizer yet, until a test calls `running.until_ready`.
    """
    drafts = [draft_server("self")] if drafts is None else drafts
    async with (
        cluster(targets or [target_server()], drafts, limits) as running,
        served(running.generator, running.metrics) as url,
        plain_client(url) as client,
    ):
        if wait:
            await running.until_ready()
        service = TableService(running, url, client)
        await service.start_grpc()
        try:
            yield service
        finally:
            await service.stop_grpc()
