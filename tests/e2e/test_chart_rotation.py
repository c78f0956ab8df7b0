"""An engineer replaces certificates and keys of a release while clients ask: no request fails.

Secrets are changed in place, and reach the pods as the kubelet swaps their files. Nothing is
restarted.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from answers import Answer, Body, drafts, gather, grpc_request
from chart_release import COORDINATOR, SPEED, TARGET, Release, needs_cluster
from chart_secrets import TLS, WORKER_CLIENT_TLS, WORKER_NAME, WORKER_TLS, Secrets
from observed import soon

from paceline.client import Client
from paceline.errors import Unauthenticated
from tests.chart.rendering import CHART, render
from tests.cluster.cluster import Cluster, running_cluster

pytestmark = [needs_cluster, pytest.mark.timeout(600)]

POOL = "paceline-draft-small"
VALUES: dict[str, Any] = {
    "target": {"settings": {"model": "table:7"}},
    "drafts": {
        "default": None,
        "small": {"settings": {"drafter": "draft-model", "model": "table:7:0.2"}},
    },
}
BODY: Body = {
    "prompt": "Once upon a time",
    "ignore_eos": True,
    "max_tokens": 80,
    "temperature": 0.8,
    "seed": 3,
    "speculation": drafts("draft-model", 3),
}
OLD, NEW = "the-old-key-of-a-caller", "the-new-key-of-a-caller"
OLD_WORKER, NEW_WORKER = "the-old-key-of-coordinators", "the-new-key-of-coordinators"


@dataclass
class Callers:
    """Ask all the time, each time over new connections; any failure ends the test."""

    release: Release
    ca_file: str
    key: str
    num_answers: int = 0
    text: str = ""
    _is_over: bool = False

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as clients:
            for ask in (self.ask_http, self.ask_http, self.ask_grpc):
                clients.create_task(self._ask_on(ask))
            try:
                yield
            finally:
                self._is_over = True

    async def some_more(self) -> None:
        """Let some ask and be answered from the beginning to the end."""
        wanted = self.num_answers + 12
        await self.release.cluster.until(lambda: self.num_answers >= wanted, "more answers")

    async def ask_http(self, key: str) -> str:
        context = await asyncio.to_thread(ssl.create_default_context, cafile=self.ca_file)
        async with httpx.AsyncClient(verify=context, trust_env=False, timeout=60) as client:
            headers = {"authorization": f"Bearer {key}"}
            url = f"https://{self.address('http')}/v1/completions"
            response = await client.post(url, json=BODY, headers=headers)
        if response.status_code == 401:
            raise Unauthenticated(response.text)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["text"])

    async def ask_grpc(self, key: str) -> str:
        address = self.address("grpc")
        async with (
            Client(address, api_key=key, tls_ca_file=self.ca_file) as client,
            aclosing(client.generate(grpc_request(BODY))) as stream,
        ):
            answer: Answer = gather([response async for response in stream])
        assert answer.speculation["num_accepted_draft_tokens"] > 0
        return answer.text

    def address(self, port: str) -> str:
        return self.release.cluster.address(COORDINATOR, port)

    async def _ask_on(self, ask: Any) -> None:
        while not self._is_over:
            text = await ask(self.key)
            self.text = self.text or text
            assert text == self.text
            self.num_answers += 1


async def test_certificates_and_keys_are_replaced_under_load(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, SPEED) as cluster:
        release = Release(cluster, render(VALUES, [CHART / "ci" / "tls-values.yaml"]))
        cluster.apply(release.manifests)
        # Pods wait for Secrets, which can be made later than all else.
        host = cluster.services[COORDINATOR].address
        secrets = Secrets(tmp_path, host, f"{COORDINATOR}.demo.svc")
        keys = [secrets.caller_keys(OLD), secrets.worker_keys(OLD_WORKER, OLD_WORKER)]
        cluster.apply([*secrets.certificates(), *keys])
        await cluster.until_complete()
        callers = Callers(release, secrets.ca_file, OLD)
        await cluster.until(lambda: "draft worker" in log(cluster, COORDINATOR), "drafts are seen")
        async with callers.asking():
            await callers.some_more()
            await replace_certificates(callers, secrets)
            await replace_worker_keys(callers, secrets)
            await replace_caller_keys(callers, secrets)
        created = {name: each.num_created for name, each in cluster.deployments.items()}
        assert created == {COORDINATOR: 1, TARGET: 1, POOL: 2, "paceline-redis": 1}
        (passed,) = await cluster.run_hooks(release.manifests, "test")
        assert passed.exit_codes == {"smoke": 0}, passed.log
        await cluster.stop()


async def replace_certificates(callers: Callers, secrets: Secrets) -> None:
    """All three at once; new connections show the new ones."""
    cluster = callers.release.cluster
    client = client_context(cluster)
    (target,) = cluster.deployments[TARGET].pods
    places = {TLS: [callers.address("http"), callers.address("grpc")]}
    places[WORKER_TLS] = [f"{target.address}:50061"]
    for name in (TLS, WORKER_TLS, WORKER_CLIENT_TLS):
        cluster.apply([secrets.certificate(name)])
        chain = cluster.objects.files("Secret", name)["tls.crt"].decode()
        expected = ssl.PEM_cert_to_DER_cert(first(chain))
        for address in places.get(name, []):

            async def is_shown(address: str = address, expected: bytes = expected) -> bool:
                return await shown_at(address, client) == expected

            await soon(is_shown, f"{address} shows the new certificate")
        await callers.some_more()


async def replace_worker_keys(callers: Callers, secrets: Secrets) -> None:
    """The new one beside the old one, then alone; a draft that comes then is reached with it."""
    cluster = callers.release.cluster
    read = "read anew: /etc/paceline/keys"

    def num_read() -> list[int]:
        return [log(cluster, name).count(read) for name in (TARGET, POOL)]

    for accepted in ([OLD_WORKER, NEW_WORKER], [NEW_WORKER]):
        wanted = [number + 1 for number in num_read()]
        cluster.apply([secrets.worker_keys(NEW_WORKER, *accepted)])
        await cluster.until(lambda wanted=wanted: num_read() == wanted, "workers read their keys")
        await callers.some_more()
    cluster.scale(POOL, 2)
    await cluster.until_complete(POOL)
    address = cluster.deployments[POOL].pods[-1].address
    ready = f"draft worker {address}:50071 is ready"
    await cluster.until(lambda: ready in log(cluster, COORDINATOR), ready)
    await callers.some_more()


async def replace_caller_keys(callers: Callers, secrets: Secrets) -> None:
    """The new one beside the old one; callers move; the old one is taken out and refused."""
    cluster = callers.release.cluster
    with pytest.raises(Unauthenticated):
        await callers.ask_http(NEW)
    cluster.apply([secrets.caller_keys(OLD, NEW)])
    await until_known(callers, NEW, is_known=True)
    callers.key = NEW
    await callers.some_more()
    cluster.apply([secrets.caller_keys(NEW)])
    await until_known(callers, OLD, is_known=False)
    with pytest.raises(Unauthenticated):
        await callers.ask_grpc(OLD)
    await callers.some_more()


async def until_known(callers: Callers, key: str, is_known: bool) -> None:
    async def is_so() -> bool:
        try:
            await callers.ask_http(key)
        except Unauthenticated:
            return not is_known
        return is_known

    await soon(is_so, f"a key is {'known' if is_known else 'refused'}")


def client_context(cluster: Cluster) -> ssl.SSLContext:
    """What a coordinator shows workers, and looks at what they show without judging it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    (pod,) = cluster.deployments[COORDINATOR].pods
    folder = pod.folder / "volumes" / "worker-tls"
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


async def shown_at(address: str, context: ssl.SSLContext) -> bytes:
    """The certificate that a server shows now."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(
        host, int(port), ssl=context, server_hostname=WORKER_NAME
    )
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    assert isinstance(found, bytes)
    return found


def first(chain: str) -> str:
    """The first certificate of a chain."""
    end = "-----END CERTIFICATE-----"
    return chain.partition(end)[0] + end


def log(cluster: Cluster, name: str) -> str:
    return "".join(pod.log for pod in cluster.deployments[name].pods)
