"""Clients of the gRPC service that ask for too much or take too little."""

import grpc
import pytest
from coordinator_server import CoordinatorServer, message, parts_of
from waiting import SOON_S
from worker_servers import Cluster

from coordinator import servicer
from paceline.v1 import coordinator_pb2 as pb
from paceline.v1.coordinator_pb2_grpc import CoordinatorServiceStub


async def test_a_client_that_takes_nothing_is_given_up(
    running: Cluster, server: CoordinatorServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "STALLED_S", 0.2)
    little_room = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
    async with grpc.aio.insecure_channel(server.address, options=little_room) as channel:
        call = CoordinatorServiceStub(channel).Generate(message(max_tokens=4000))
        assert await call.read() is not grpc.aio.EOF
        await running.generator.drain(timeout_s=SOON_S)
        assert running.generator.status().num_running == 0
        await running.until_free()
        assert await end_of(call) is not grpc.StatusCode.OK


async def end_of(call: grpc.aio.UnaryStreamCall) -> grpc.StatusCode:
    """How a call ended, all that was sent having been read."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await call.code()


LONG = "x" * 100_000


@pytest.mark.parametrize(
    "asked",
    [
        message(request_id=LONG),
        message(session_id=LONG),
        message(stop=[LONG]),
        message(speculation=pb.Speculation(method=LONG)),
        message(speculation=pb.Speculation(acceptance_rule=LONG)),
        message(prompt=None, chat=pb.Chat(messages=[pb.ChatMessage(role=LONG, content="a")])),
        message(prompt=LONG),
        pb.GenerateRequest(request_id=LONG, resume_from=[0]),
    ],
)
async def test_what_is_refused_for_a_long_value_is_told_in_a_short_message(
    asked: pb.GenerateRequest, stub: CoordinatorServiceStub
) -> None:
    """gRPC drops a message of more than some kilobytes, and the status with it."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await parts_of(stub.Generate(asked))
    assert refused.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    assert len(refused.value.details()) < 300
