"""gRPC passes over options that it does not know in silence, so their names are checked here."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from waiting import SOON_S

from paceline import channel
from paceline.channel import SERVER_OPTIONS
from paceline.cli.readiness import GrpcProbe
from paceline.server import GrpcServer


@pytest.fixture
def channel_options(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The options that every channel is opened with."""
    seen: list[tuple[str, Any]] = []
    monkeypatch.setattr(
        channel.grpc.aio, "insecure_channel", lambda address, options: seen.extend(options)
    )
    channel.open_channel("127.0.0.1:1")
    return seen


def test_grpc_knows_every_option_by_its_name(channel_options: list[tuple[str, Any]]) -> None:
    library = Path(cygrpc.__file__).read_bytes()
    for name, _ in (*channel_options, *SERVER_OPTIONS):
        assert name.encode() + b"\0" in library, name


def test_servers_allow_pings_as_often_as_channels_send_them(
    channel_options: list[tuple[str, Any]],
) -> None:
    least_ms = dict(SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"]
    assert least_ms < dict(channel_options)["grpc.keepalive_time_ms"]


def hurried(options: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The same with pings that come, and are missed, sooner."""
    slow = (channel.KEEPALIVE_MS, channel.KEEPALIVE_TIMEOUT_MS)
    return [(name, 100 if value in slow else value) for name, value in options]


HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_SETTINGS, SETTINGS_ARE_READ = b"\0\0\0\4\0\0\0\0\0", b"\0\0\0\4\1\0\0\0\0"


async def test_a_server_leaves_a_client_that_says_nothing_any_more() -> None:
    """As when a coordinator's machine is gone: its sequences would be held for hours."""
    server = grpc.aio.server(options=hurried(SERVER_OPTIONS))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HTTP2_PREFACE + NO_SETTINGS + SETTINGS_ARE_READ)
    await asyncio.wait_for(reader.read(), 10)  # to the end
    writer.close()
    await server.stop(0)


async def test_a_channel_leaves_a_server_that_says_nothing_any_more(
    channel_options: list[tuple[str, Any]],
) -> None:
    async def begin_and_be_silent(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(NO_SETTINGS + SETTINGS_ARE_READ)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(begin_and_be_silent, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    credentials = grpc.local_channel_credentials()
    options = hurried(channel_options)
    async with grpc.aio.secure_channel(address, credentials, options=options) as opened:
        with pytest.raises(grpc.aio.AioRpcError, match="ping timeout"):
            await asyncio.wait_for(opened.stream_stream("/service/Method")().read(), 10)
    server.close()


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    server = GrpcServer("service", lambda _: None)
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    await server.set_ready(True)
    async with channel.open_channel(address) as opened:
        answer = await health_pb2_grpc.HealthStub(opened).Check(
            health_pb2.HealthCheckRequest(service="service"), timeout=SOON_S
        )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert await asyncio.to_thread(GrpcProbe(address, "service"))
    await server.stop(0)
