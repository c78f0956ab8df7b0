"""TLS between clients, coordinator and workers: who is refused, and certificates that change."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from authority import Authority, CertificateFiles
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from http_service import COMPLETIONS
from table_requests import PROMPT, expected, request
from trustme import KeyType
from waiting import SOON_S, until
from whole_coordinator import coordinator
from worker_servers import WorkerServer, target_server

from paceline.certificates import client_certificates, server_certificates
from paceline.channel import PLAIN, Access, open_channel
from paceline.cli.api import ApiError, CoordinatorApi
from paceline.client import Client
from paceline.errors import Unavailable
from paceline.server import GrpcServer
from paceline.server_security import ServerSecurity
from paceline.v1 import coordinator_pb2 as pb
from paceline.v1 import target_pb2, target_pb2_grpc

LOOPBACK = ("127.0.0.1", "localhost")
MAX_TOKENS = 300
BODY: dict[str, Any] = {
    "prompt": PROMPT,
    "max_tokens": MAX_TOKENS,
    "temperature": 0,
    "ignore_eos": True,
}
TEXT = expected(request(max_tokens=MAX_TOKENS))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def shown(authority: Authority) -> CertificateFiles:
    """What servers show."""
    return authority.issue("server", *LOOPBACK)


def secured(shown: CertificateFiles, client_ca: str = "") -> ServerSecurity:
    return ServerSecurity(certificates=server_certificates(*shown, client_ca))


def access(authority: Authority, *own: str, server_name: str = "") -> Access:
    return Access("", client_certificates(*(own or ("", "")), authority.ca_file), server_name)


@pytest.fixture
async def targets() -> AsyncIterator[list[WorkerServer]]:
    """Those that a test starts."""
    started: list[WorkerServer] = []
    yield started
    for target in started:
        await target.kill()


async def started(targets: list[WorkerServer], security: ServerSecurity) -> WorkerServer:
    target = target_server()
    target.security = security
    targets.append(target)
    await target.start()
    return target


async def info(target: WorkerServer, access: Access) -> str:
    """The model of a target, or why it does not answer."""
    async with access.open_channel(target.address) as channel:
        stub = target_pb2_grpc.TargetServiceStub(channel)
        try:
            asked = target_pb2.TargetServiceGetInfoRequest()
            return str((await stub.GetInfo(asked, timeout=SOON_S)).info.model)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"


async def test_a_server_with_tls_is_reached_by_who_trusts_it_and_by_nobody_else(
    targets: list[WorkerServer], authority: Authority, tmp_path: Path, shown: CertificateFiles
) -> None:
    target = await started(targets, secured(shown))
    assert await info(target, access(authority)) == "table:7"
    for wrong in (PLAIN, access(Authority(tmp_path, "other"))):
        assert (await info(target, wrong)).startswith("UNAVAILABLE")


async def test_a_certificate_of_another_name_is_refused_unless_that_name_is_expected(
    targets: list[WorkerServer], authority: Authority
) -> None:
    """As with pods, which are reached by their IP and show the name of their Service."""
    target = await started(targets, secured(authority.issue("service", "target.svc")))
    assert (await info(target, access(authority))).startswith("UNAVAILABLE")
    assert await info(target, access(authority, server_name="target.svc")) == "table:7"


async def test_without_a_certificate_of_its_own_a_client_is_refused_where_one_is_asked_for(
    targets: list[WorkerServer], authority: Authority, tmp_path: Path, shown: CertificateFiles
) -> None:
    target = await started(targets, secured(shown, authority.ca_file))
    own = authority.issue("client", "coordinator.svc")
    assert await info(target, access(authority, *own)) == "table:7"
    strangers = Authority(tmp_path, "strangers").issue("stranger", "coordinator.svc")
    for refused in (access(authority), access(authority, *strangers)):
        assert (await info(target, refused)).startswith("UNAVAILABLE")


async def test_a_whole_service_over_mtls_answers_as_ever_and_rotates_under_load(
    targets: list[WorkerServer], authority: Authority, shown: CertificateFiles
) -> None:
    """New certificates serve new connections; what streams meanwhile is not disturbed."""
    own = authority.issue("client", "coordinator.svc")
    target = await started(targets, secured(shown, authority.ca_file))
    front = secured(shown)
    async with (
        coordinator([target], security=front, access=access(authority, *own)) as running,
        Client(running.grpc_address, tls_ca_file=authority.ca_file) as client,
        httpx.AsyncClient(
            base_url=running.url.replace("http:", "https:"),
            verify=ssl.create_default_context(cafile=authority.ca_file),
            timeout=SOON_S,
        ) as http,
        http.stream(
            "POST", COMPLETIONS, json={**BODY, "stream": True, "return_token_ids": True}
        ) as response,
    ):
        parts = aiter(client.generate(pb.GenerateRequest(**BODY)))
        first = await anext(parts)
        before = [
            await serial(running.http.port, authority),
            *await grpc_serials(running, authority),
        ]
        authority.issue("server", *LOOPBACK)
        for files in (front, target.security):
            assert files.certificates is not None
            await files.certificates.look()
        after = [
            await serial(running.http.port, authority),
            *await grpc_serials(running, authority),
        ]
        assert len({*before}) == len({*after}) == 1
        assert before[0] != after[0]
        text = (await response.aread()).decode()
        assert text.endswith("data: [DONE]\n\n")
        rest = [id async for part in parts for id in part.token_ids]
        assert [*first.token_ids, *rest] == TEXT
        assert running.pool.ready_targets()


@pytest.mark.parametrize("kinds", [(KeyType.ECDSA, KeyType.RSA), (KeyType.RSA, KeyType.ECDSA)])
async def test_a_certificate_with_another_kind_of_key_is_shown_in_place_of_the_first(
    kinds: tuple[KeyType, KeyType], authority: Authority
) -> None:
    """A context of OpenSSL keeps one of each kind, and shows the one that clients like better."""
    front = secured(authority.issue("server", *LOOPBACK, key_type=kinds[0]))
    assert front.certificates is not None
    async with coordinator([], security=front) as running:
        before = await serial(running.http.port, authority), await grpc_serials(running, authority)
        authority.issue("server", *LOOPBACK, key_type=kinds[1])
        await front.certificates.look()
        assert await serial(running.http.port, authority) != before[0]
        assert await grpc_serials(running, authority) != before[1]


async def grpc_serials(running: Any, authority: Authority) -> list[str]:
    port = int(running.grpc_address.rpartition(":")[2])
    return [await serial(port, authority)]


async def serial(port: int, authority: Authority) -> str:
    """The number of the certificate that a port shows to whoever connects now."""
    context = ssl.create_default_context(cafile=authority.ca_file)
    context.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    number: str = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    return number


async def test_a_coordinator_takes_new_files_for_its_next_connection(
    targets: list[WorkerServer], authority: Authority, shown: CertificateFiles, tmp_path: Path
) -> None:
    target = await started(targets, secured(shown, authority.ca_file))
    other = Authority(tmp_path, "other")
    own = other.issue("client", "coordinator.svc")
    async with coordinator([], access=PLAIN) as running:
        pool = running.pool
        pool.__init__([target.address], [], access(authority, *own))  # type: ignore[misc]
        pool.start()
        await until(lambda: pool.targets[0].reason.startswith("UNAVAILABLE"))
        authority.issue("client", "coordinator.svc")
        await until(lambda: bool(pool.ready_targets()))


async def test_http_over_tls_refuses_the_clear_and_clients_without_certificates(
    targets: list[WorkerServer], authority: Authority, shown: CertificateFiles
) -> None:
    target = await started(targets, secured(shown))
    own = authority.issue("client", "somebody")
    trusting = ssl.create_default_context(cafile=authority.ca_file)
    showing = ssl.create_default_context(cafile=authority.ca_file)
    showing.load_cert_chain(*own)
    async with coordinator(
        [target], security=secured(shown, authority.ca_file), access=access(authority)
    ) as running:
        https = running.url.replace("http:", "https:")
        async with httpx.AsyncClient(verify=showing, timeout=SOON_S) as client:
            assert (await client.get(f"{https}/health")).status_code == 200
        for url, context in ((running.url, trusting), (https, trusting)):
            async with httpx.AsyncClient(verify=context, timeout=SOON_S) as client:
                with pytest.raises(httpx.TransportError):
                    await client.get(f"{url}/health")
        async with Client(running.grpc_address, tls_ca_file=authority.ca_file) as client:
            with pytest.raises(Unavailable):
                await client.status()


async def test_the_command_line_reaches_https(
    targets: list[WorkerServer], authority: Authority, shown: CertificateFiles
) -> None:
    target = await started(targets, ServerSecurity())
    async with coordinator([target], security=secured(shown)) as running:
        https = running.url.replace("http:", "https:")

        def model(tls_ca_file: str | None) -> str:
            with CoordinatorApi(https, "", tls_ca_file) as api:
                return api.model()

        assert await asyncio.to_thread(model, authority.ca_file) == "table:7"
        with pytest.raises(ApiError, match="--tls-ca-file with its authority"):
            await asyncio.to_thread(model, None)
        with pytest.raises(ApiError, match=r"--tls-ca-file is .*server.key"):
            await asyncio.to_thread(model, shown.private_key)


async def test_health_alone_is_in_the_clear_on_a_port_of_its_own(
    shown: CertificateFiles,
) -> None:
    certificates = server_certificates(*shown, "")
    security = ServerSecurity(certificates=certificates, health_port=0)
    server = GrpcServer("paceline.v1.Some", lambda _: None, security=security)
    port = await server.start("127.0.0.1", 0)
    await server.set_ready(True)
    async with open_channel(f"127.0.0.1:{server.health.port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "paceline.v1.Some"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=SOON_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        await server.set_ready(False)
        asked = health_pb2.HealthCheckRequest(service="paceline.v1.Some")
        answer = await health.Check(asked, timeout=SOON_S)
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = reflection.ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    async with open_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await health_pb2_grpc.HealthStub(channel).Check(asked, timeout=SOON_S)
    await server.stop(0)
