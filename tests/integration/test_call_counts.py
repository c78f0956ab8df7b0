"""What is counted of gRPC calls: those that run, and how the others ended."""

import contextlib

import grpc
import pytest
from coordinator_server import CoordinatorServer, message, parts_of
from waiting import until

from paceline.channel import open_channel
from paceline.v1 import coordinator_pb2 as pb
from paceline.v1.coordinator_pb2_grpc import CoordinatorServiceStub


async def test_calls_are_counted_while_they_run_and_by_how_they_end(
    server: CoordinatorServer, stub: CoordinatorServiceStub
) -> None:
    calls = server.calls
    answer = stub.Generate(message(max_tokens=2000))
    await answer.read()
    assert calls.in_flight["Generate"] == 1
    answer.cancel()
    await until(lambda: calls.in_flight["Generate"] == 0)
    await parts_of(stub.Generate(message(max_tokens=2)))
    with pytest.raises(grpc.aio.AioRpcError):
        await parts_of(stub.Generate(message(temperature=3.0)))
    await stub.GetStatus(pb.GetStatusRequest())
    await until(lambda: sum(calls.ended.values()) == 4)
    assert dict(calls.ended) == {
        ("Generate", "CANCELLED"): 1,
        ("Generate", "OK"): 1,
        ("Generate", "INVALID_ARGUMENT"): 1,
        ("GetStatus", "OK"): 1,
    }
    assert set(calls.in_flight.values()) == {0}


async def test_methods_that_are_not_there_and_other_services_are_no_label(
    server: CoordinatorServer,
) -> None:
    async with open_channel(server.address) as channel:
        for path in ("/paceline.v1.CoordinatorService/NoSuch", "/no.Such/Thing"):
            with contextlib.suppress(grpc.aio.AioRpcError):
                await channel.unary_unary(path)(b"")
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        await health(b"")
    assert not server.calls.ended
    assert not server.calls.in_flight
