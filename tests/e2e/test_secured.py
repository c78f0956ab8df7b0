"""A whole service of real processes with TLS, keys and mTLS to its workers, as settings make it."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from authority import Authority
from conftest import TABLE
from ports import HOST, number_of, reserve_port
from processes import Processes
from redis_server import ManagedRedis, tls_options
from waiting import SOON_S

from paceline.cli.readiness import GrpcProbe
from paceline.client import Client, GenerateRequest

pytestmark = pytest.mark.timeout(900)

KEY, WORKER_KEY = "the-key-of-a-caller", "the-key-of-coordinators"
REDIS_PASSWORD = "the-password-of-redis"
BODY: dict[str, Any] = {"prompt": "Once", "max_tokens": 20, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def redis_port(authority: Authority) -> Iterator[int]:
    """Of a Redis that speaks TLS and asks for a certificate and a password."""
    options = tls_options(authority, authority.issue("redis", HOST))
    with reserve_port() as reserved:
        port = number_of(reserved)
        with ManagedRedis(bind=HOST, tls_port=port, requirepass=REDIS_PASSWORD, **options):
            yield port


async def test_settings_alone_make_a_service_that_only_its_callers_reach(
    processes: Processes, authority: Authority, redis_port: int, tmp_path: Path
) -> None:
    shown = authority.issue("server", HOST)
    own = authority.issue("coordinator", "coordinator.svc")
    (tmp_path / "keys").write_text(f"somebody: {KEY}\n")
    (tmp_path / "worker-key").write_text(WORKER_KEY)
    (tmp_path / "redis-password").write_text(REDIS_PASSWORD)
    tls = {"tls_certificate_file": shown.certificate, "tls_private_key_file": shown.private_key}
    health_port, target_health_port = processes.port(), processes.port()
    target = processes.target(
        model=TABLE,
        tls_client_ca_file=authority.ca_file,
        api_keys_file=tmp_path / "worker-key",
        health_port=target_health_port,
        **tls,
    )
    target.is_ready = GrpcProbe(f"{HOST}:{target_health_port}", "paceline.v1.TargetService")
    coordinator = processes.coordinator(
        [target],
        [],
        f"rediss://{HOST}:{redis_port}",
        redis_password_file=tmp_path / "redis-password",
        redis_tls_ca_file=authority.ca_file,
        redis_tls_certificate_file=own.certificate,
        redis_tls_private_key_file=own.private_key,
        api_keys_file=tmp_path / "keys",
        worker_api_key_file=tmp_path / "worker-key",
        worker_tls_ca_file=authority.ca_file,
        worker_tls_certificate_file=own.certificate,
        worker_tls_private_key_file=own.private_key,
        health_port=health_port,
        **tls,
    )
    coordinator.is_ready = GrpcProbe(f"{HOST}:{health_port}", "paceline.v1.CoordinatorService")
    target.wait_ready()
    coordinator.wait_ready()
    async with (
        httpx.AsyncClient(
            base_url=coordinator.url.replace("http:", "https:"),
            verify=ssl.create_default_context(cafile=authority.ca_file),
            trust_env=False,
            timeout=SOON_S,
        ) as http,
        Client(coordinator.grpc_address, api_key=KEY, tls_ca_file=authority.ca_file) as client,
    ):
        assert (await http.post("/v1/completions", json=BODY)).status_code == 401
        headers = {"authorization": f"Bearer {KEY}"}
        answer = await http.post("/v1/completions", json=BODY, headers=headers)
        assert answer.status_code == 200, answer.text
        text = "".join([part.text async for part in client.generate(GenerateRequest(**BODY))])
        assert answer.json()["choices"][0]["text"] == text != ""
        status = await http.get("/status", headers=headers)
        assert status.json()["session_store"] == "redis"
    for service in (coordinator, target):
        service.stop()
        assert service.child.process.returncode == 0
