"""The coordinator's gRPC service in this process, and what tests say to it."""

from functools import partial

from worker_servers import Cluster

from coordinator.servicer import SERVICE_NAME, CoordinatorServicer
from paceline.server import GrpcServer
from paceline.telemetry.tracer import NOT_TRACED, Tracer
from paceline.v1 import coordinator_pb2 as pb
from paceline.v1.coordinator_pb2_grpc import add_CoordinatorServiceServicer_to_server


class CoordinatorServer:
    """A gRPC server in front of a generator."""

    def __init__(self, running: Cluster, tracer: Tracer = NOT_TRACED) -> None:
        serving = CoordinatorServicer(running.generator, tracer=tracer)
        self._server = GrpcServer(
            SERVICE_NAME, partial(add_CoordinatorServiceServicer_to_server, serving)
        )
        self.calls = self._server.calls
        self.address = ""

    async def start(self) -> None:
        self.address = f"127.0.0.1:{await self._server.start('127.0.0.1', 0)}"

    async def kill(self) -> None:
        await self._server.stop(0)


def message(**changes: object) -> pb.GenerateRequest:
    fields = {"prompt": "the rain in", "max_tokens": 30, "temperature": 0.0, "ignore_eos": True}
    return pb.GenerateRequest(**{**fields, **changes})


async def parts_of(call: object) -> list[pb.GenerateResponse]:
    return [part async for part in call]


def token_ids_of(parts: list[pb.GenerateResponse]) -> list[int]:
    return [token_id for part in parts for token_id in part.token_ids]
