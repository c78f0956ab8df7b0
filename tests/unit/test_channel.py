"""gRPC passes over options that it does not know in silence, so their names are checked here."""

import asyncio
from pathlib import Path

import pytest
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline import channel
from paceline.channel import SERVER_OPTIONS
from paceline.cli.readiness import GrpcProbe
from paceline.server import GrpcServer


@pytest.fixture
def channel_options(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """The options that every channel is opened with."""
    seen: list[tuple[str, object]] = []
    monkeypatch.setattr(
        channel.grpc.aio, "insecure_channel", lambda address, options: seen.extend(options)
    )
    channel.open_channel("127.0.0.1:1")
    return seen


def test_grpc_knows_every_option_by_its_name(channel_options: list[tuple[str, object]]) -> None:
    library = Path(cygrpc.__file__).read_bytes()
    for name, _ in (*channel_options, *SERVER_OPTIONS):
        assert name.encode() + b"\0" in library, name


def test_servers_allow_pings_as_often_as_channels_send_them(
    channel_options: list[tuple[str, object]],
) -> None:
    least_ms = dict(SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"]
    assert least_ms < dict(channel_options)["grpc.keepalive_time_ms"]


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    server = GrpcServer("service", lambda _: None)
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    await server.set_ready(True)
    async with channel.open_channel(address) as opened:
        answer = await health_pb2_grpc.HealthStub(opened).Check(
            health_pb2.HealthCheckRequest(service="service"), timeout=10
        )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert await asyncio.to_thread(GrpcProbe(address, "service"))
    await server.stop(0)
