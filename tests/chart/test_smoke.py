"""What `helm test` runs: passes where the service works, and else says what is wrong."""

import asyncio
import sys
from pathlib import Path

from authority import Authority
from table_service import table_service
from whole_coordinator import coordinator
from worker_servers import target_server

from paceline.api_keys import ApiKeys
from paceline.certificates import server_certificates
from paceline.engine.table_model import TableLaw
from paceline.server_security import ServerSecurity
from tests.chart.rendering import CHART, needs_helm, render

TLS = CHART / "ci" / "tls-values.yaml"
SCRIPT = CHART / "files" / "smoke.py"
KEY = "sk-3q9mVtYwB7dLkPzXn2"


async def smoke(*options: str) -> tuple[int | None, str]:
    """Exit status and output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        SCRIPT,
        *options,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_it_passes_where_all_ways_to_ask_give_one_text() -> None:
    async with table_service() as service:
        status, said = await smoke("--url", service.url, "--grpc", service.grpc_address)
    assert status == 0, said
    assert "all texts are equal" in said


async def test_it_fails_where_a_text_differs() -> None:
    other = target_server(TableLaw(99))
    async with table_service() as service, table_service(targets=[other]) as elsewhere:
        status, said = await smoke("--url", service.url, "--grpc", elsewhere.grpc_address)
    assert status == 1
    assert "one gRPC call is" in said and "but expected" in said


async def test_it_shows_a_key_and_trusts_the_authority(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"# for tests\nteam: {KEY}\n")
    authority = Authority(tmp_path)
    security = ServerSecurity(
        ApiKeys(str(keys)), server_certificates(*authority.issue("server", "127.0.0.1"), "")
    )
    target = target_server()
    await target.start()
    async with coordinator([target], security=security) as running:
        options = ["--url", running.url.replace("http:", "https:"), "--grpc", running.grpc_address]
        options += ["--tls-ca-file", authority.ca_file]
        assert (await smoke(*options, "--api-keys-file", str(keys)))[0] == 0
        status, said = await smoke(*options)
    await target.kill()
    assert status == 1 and "401" in said


@needs_helm
def test_its_pod_asks_the_coordinator_as_the_values_say() -> None:
    plain = render().one("Pod", "paceline-smoke")["spec"]["containers"][0]["command"]
    assert plain == [
        *("python", "/etc/paceline/smoke/smoke.py"),
        *("--url", "http://paceline-coordinator.demo.svc:8000"),
        *("--grpc", "paceline-coordinator.demo.svc:50051"),
    ]
    pod = render(files=(TLS,)).one("Pod", "paceline-smoke")["spec"]
    secured = pod["containers"][0]
    assert secured["command"][3] == "https://paceline-coordinator.demo.svc:8000"
    given = {"/etc/paceline/keys/keys", "/etc/paceline/tls/ca.crt"}
    assert given <= set(secured["command"])
    volumes = {item["name"]: item["secret"] for item in pod["volumes"] if "secret" in item}
    there = {
        f"{mount['mountPath']}/{item['path']}"
        for mount in secured["volumeMounts"]
        for item in volumes.get(mount["name"], {}).get("items", [])
    }
    assert there == given
    script = render().one("ConfigMap", "paceline-smoke")["data"]["smoke.py"]
    assert script.strip() == SCRIPT.read_text().strip()


@needs_helm
def test_nothing_is_tested_where_clients_need_a_certificate() -> None:
    tls = {"coordinator": {"existingSecret": "a", "clientCertificates": True}}
    assert render({"security": {"tls": tls}}).names("Pod") == set()
