"""In a pod: the API server by TLS, with the token that the kubelet mounts and replaces."""

import datetime
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from authority import Authority
from kubernetes_api import KubernetesApi
from seen_sources import seeing
from session_stores import until

from paceline.workers.discovery import kubernetes_api, kubernetes_watch

A, B, C = "10.0.0.1:5001", "10.0.0.2:5001", "10.0.0.3:5001"
LOADER = "kubernetes.aio.config.incluster_config"


class ServiceAccount:
    """The files of a mounted service account; swapped as a whole, as the kubelet does it."""

    def __init__(self, folder: Path, ca_file: str) -> None:
        self._folder = folder
        self._num_versions = 0
        self.files = {"ca.crt": Path(ca_file).read_text(), "token": "", "namespace": "here"}

    def path(self, name: str) -> Path:
        return self._folder / "current" / name

    def mount(self, **changes: str) -> None:
        self.files |= changes
        version = self._folder / f"version-{self._num_versions}"
        self._num_versions += 1
        version.mkdir()
        for name, text in self.files.items():
            (version / name).write_text(text)
        link = self._folder / "next"
        link.symlink_to(version)
        link.rename(self._folder / "current")


@pytest.fixture
def tokens_age_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package looks at the file for every call, and not once a minute."""
    times = SimpleNamespace(
        datetime=datetime.datetime, timedelta=lambda minutes: datetime.timedelta()
    )
    monkeypatch.setattr(f"{LOADER}.datetime", times)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def stranger(tmp_path: Path) -> str:
    """The certificate of an authority that the API server has nothing to do with."""
    return Path(Authority(tmp_path, "stranger").ca_file).read_text()


@pytest.fixture
async def api(authority: Authority) -> AsyncIterator[KubernetesApi]:
    server = KubernetesApi()
    server.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.tls.load_cert_chain(*authority.issue("api-server", "127.0.0.1"))
    async with server:
        yield server


@pytest.fixture
def account(
    api: KubernetesApi, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ServiceAccount:
    """Of a pod of which this process is the container."""
    account = ServiceAccount(tmp_path, authority.ca_file)
    account.mount(token=api.token)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
    monkeypatch.setattr(f"{LOADER}.SERVICE_TOKEN_FILENAME", str(account.path("token")))
    monkeypatch.setattr(f"{LOADER}.SERVICE_CERT_FILENAME", str(account.path("ca.crt")))
    monkeypatch.setattr(kubernetes_api, "OWN_NAMESPACE", account.path("namespace"))
    monkeypatch.setattr(kubernetes_watch, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(kubernetes_watch, "LONGEST_PAUSE_S", 0.05)
    nowhere = str(tmp_path / "nothing")
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", nowhere)
    return account


async def test_a_pod_finds_the_workers_of_its_own_namespace(
    api: KubernetesApi, account: ServiceAccount
) -> None:
    api.put_pod("draft", A, namespace="here")
    api.put_pod("draft", B, namespace="elsewhere")
    async with seeing("kubernetes://draft") as seen, seeing("kubernetes://elsewhere/draft") as away:
        await seen.until_addresses(A)
        await away.until_addresses(B)
        assert api.num_unauthorized == 0


@pytest.mark.usefixtures("tokens_age_at_once")
async def test_a_token_that_was_replaced_is_taken_before_the_old_one_is_refused(
    api: KubernetesApi, account: ServiceAccount
) -> None:
    api.put_pod("draft", A, namespace="here")
    async with seeing("kubernetes://draft") as seen:
        await seen.until_addresses(A)
        await until(lambda: api.num_watchers == 1)
        api.token = "the next one"
        account.mount(token=api.token)
        api.send_bookmarks()
        api.end_watches()
        await until(lambda: api.num_watches == 2 and api.num_watchers == 1)
        api.put_pod("draft", B, namespace="here")
        await seen.until_addresses(A, B)
        assert (api.num_unauthorized, api.num_lists) == (0, 1)


async def test_a_token_that_is_refused_is_read_again_and_takes_nothing_back(
    api: KubernetesApi, account: ServiceAccount
) -> None:
    api.put_pod("draft", A, namespace="here")
    async with seeing("kubernetes://draft") as seen:
        await seen.until_addresses(A)
        await until(lambda: api.num_watchers == 1)
        api.token = "the next one"
        api.end_watches()
        await seen.until_problem("401")
        assert seen.addresses == [A]
        account.mount(token=api.token)
        api.put_pod("draft", B, namespace="here")
        await seen.until_addresses(A, B)
        assert seen.state.problem == ""


@pytest.mark.usefixtures("tokens_age_at_once")
async def test_a_token_that_cannot_be_read_again_is_a_fault_like_any_other(
    api: KubernetesApi, account: ServiceAccount, caplog: pytest.LogCaptureFixture
) -> None:
    async with seeing("kubernetes://here/draft") as seen:
        await until(lambda: api.num_watchers == 1)
        api.send_bookmarks()
        account.mount(token="")
        api.end_watches()
        await seen.until_problem("Token file exists but empty")
        account.mount(token=api.token)
        api.put_pod("draft", A, namespace="here")
        await seen.until_addresses(A)
    assert "following it failed" not in caplog.text


async def test_files_that_cannot_be_used_are_named_until_they_are_mended(
    api: KubernetesApi, account: ServiceAccount, stranger: str
) -> None:
    right = account.files["ca.crt"]
    api.put_pod("draft", A, namespace="here")
    account.mount(token="")
    async with seeing("kubernetes://draft") as seen:
        await seen.until_problem("Token file exists but empty")
        account.mount(token=api.token, **{"ca.crt": stranger})
        await seen.until_problem("out of reach", "CERTIFICATE_VERIFY_FAILED")
        account.mount(**{"ca.crt": "no certificate"})
        await seen.until_problem("cannot trust an API server with", "ca.crt")
        account.mount(**{"ca.crt": right})
        await seen.until_addresses(A)
        assert seen.state.problem == ""


async def test_only_a_source_without_a_namespace_needs_that_of_the_pod(
    api: KubernetesApi, account: ServiceAccount
) -> None:
    api.put_pod("draft", A, namespace="here")
    account.path("namespace").unlink()
    async with seeing("kubernetes://here/draft") as named, seeing("kubernetes://draft") as seen:
        await named.until_addresses(A)
        problem = await seen.until_problem("namespace")
        assert "kubernetes://namespace/service" in problem
