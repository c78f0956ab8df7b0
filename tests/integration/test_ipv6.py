"""All servers listen on IPv6 addresses: some clusters have no others."""

import socket

import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from waiting import SOON_S

from coordinator.http.server import HttpServer
from paceline.channel import open_channel
from paceline.errors import InvalidConfig
from paceline.metrics import Instruments, MetricsServer
from paceline.server import GrpcServer
from paceline.server_security import ServerSecurity

HOST = "::1"


@pytest.fixture(autouse=True)
def needs_ipv6() -> None:
    try:
        socket.create_server((HOST, 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")


async def test_grpc_and_its_health_listen_on_ipv6() -> None:
    server = GrpcServer("worker", lambda _: None, security=ServerSecurity(health_port=0))
    port = await server.start(HOST, 0)
    for number in (port, server.health.port):
        async with open_channel(f"[{HOST}]:{number}") as channel:
            asked = health_pb2.HealthCheckRequest(service="")
            answer = await health_pb2_grpc.HealthStub(channel).Check(asked, timeout=SOON_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
    other = GrpcServer("worker", lambda _: None)
    with pytest.raises(InvalidConfig, match=rf"port: cannot listen on \[{HOST}\]:{port};"):
        await other.start(HOST, port)
    await server.stop(0)


async def test_metrics_listen_on_ipv6() -> None:
    metrics = MetricsServer(Instruments(), HOST, 0)
    async with httpx.AsyncClient() as client:
        assert (await client.get(metrics.url)).is_success
    await metrics.stop()


async def test_http_listens_on_ipv6() -> None:
    http = HttpServer(_teapot, HOST, 0)
    http.start()
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"http://[{HOST}]:{http.port}/")).status_code == 418
    await http.stop()


async def _teapot(scope: object, receive: object, send: object) -> None:
    assert callable(send)
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": b""})
