"""What Redis is shown, what it may do to us if it is not content, and how that is told."""

import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from authority import Authority
from ports import HOST, number_of, reserve_port
from redis_server import BINARIES, ManagedRedis, tls_options
from relay import Relay
from session_stores import generation, recorded, until

from coordinator.metrics import Metrics
from coordinator.records import Placement, SessionStore
from coordinator.redis_access import RedisSettings, access_to_redis
from coordinator.requests import FinishReason
from coordinator.session_store import open_session_store
from paceline.config import read_settings

PASSWORD = "secret-of-redis"
PAGE = Path(__file__).parents[2] / "docs" / "redis.md"


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at once in a while is looked at often."""
    for name in ("_PROBE_INTERVAL_S", "_IDLE_PROBE_S"):
        monkeypatch.setattr(f"coordinator.shared_store.{name}", 0.05)


@dataclass
class Secured:
    """A Redis that speaks TLS on one port, plainly on another, and asks for all it can."""

    server: ManagedRedis
    authority: Authority
    folder: Path
    tls_port: int
    port: int

    def settings(self, **changes: Any) -> dict[str, Any]:
        """Settings that it is content with, but for `changes`."""
        return {
            "redis_url": f"rediss://{HOST}:{self.tls_port}",
            "redis_password_file": self.write("password", PASSWORD),
            "redis_tls_ca_file": self.authority.ca_file,
            "redis_tls_certificate_file": str(self.folder / "own.crt"),
            "redis_tls_private_key_file": str(self.folder / "own.key"),
            **changes,
        }

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def renew_connections(self) -> None:
        with self.server.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    authority = Authority(tmp_path)
    authority.issue("own", "coordinator")
    options = tls_options(authority, authority.issue("redis", HOST))
    with reserve_port() as tls, reserve_port() as plain:
        ports = {"tls_port": number_of(tls), "port": number_of(plain)}
        with ManagedRedis(bind=HOST, requirepass=PASSWORD, **options, **ports) as server:
            yield Secured(server, authority, tmp_path, **ports)


@asynccontextmanager
async def store_of(settings: dict[str, Any], **options: Any) -> AsyncIterator[SessionStore]:
    read = read_settings(RedisSettings, settings)
    store = await open_session_store(read.redis_url, access=access_to_redis(read), **options)
    try:
        yield store
    finally:
        await store.aclose()


async def test_a_password_is_read_anew_for_every_connection(secured: Secured) -> None:
    troubles = set()
    async with store_of(secured.settings(), watch=lambda *call: troubles.add(call[2])) as store:
        assert store.status == "redis"
        with secured.server.client() as client:
            client.config_set("requirepass", "another")
            client.execute_command("AUTH", "another")
            await recorded(await store.open(generation("while connections stand")), 0)
            secured.write("password", "another\n")
            client.client_kill_filter(_type="normal", skipme=True)
            await recorded(await store.open(generation("on a new one")), 0)
    assert "password refused" not in troubles


async def test_certificates_and_authorities_are_read_anew_for_every_connection(
    secured: Secured,
) -> None:
    def put_new_ones(whose: Authority) -> None:
        shown = whose.issue("redis", HOST)
        with secured.server.client() as client:
            new = {name.replace("_", "-"): path for name, path in tls_options(whose, shown).items()}
            client.execute_command(
                "CONFIG", "SET", *(part for item in new.items() for part in item)
            )

    settings = secured.settings()
    async with store_of(settings) as store:
        assert store.status == "redis"
        other = Authority(secured.folder, "other")
        put_new_ones(other)
        secured.renew_connections()
        await until(lambda: store.status == "redis (certificate not trusted: in memory for now)")
        shutil.copy(other.ca_file, secured.authority.ca_file)
        await until(lambda: store.status == "redis (certificate refused: in memory for now)")
        other.issue("own", "coordinator")
        await until(lambda: store.status == "redis")
        put_new_ones(secured.authority)
        secured.renew_connections()
        await until(lambda: store.status == "redis (certificate not trusted: in memory for now)")


NO_TLS = dict.fromkeys((name for name in RedisSettings.model_fields if "_tls_" in name), "")


@pytest.mark.parametrize(
    ("mistake", "trouble"),
    [
        ({"redis_password_file": ""}, "password refused"),
        ({"redis_password_file": "{folder}/wrong"}, "password refused"),
        ({"redis_username": "nobody"}, "password refused"),
        ({"redis_tls_ca_file": "{folder}/other.crt"}, "certificate not trusted"),
        ({"redis_tls_ca_file": ""}, "certificate not trusted"),
        ({"redis_url": "rediss://localhost:{tls_port}"}, "certificate not trusted"),
        ({**NO_TLS, "redis_url": "redis://127.0.0.1:{tls_port}"}, "unreachable"),
    ],
)
async def test_what_is_wrong_is_told_without_secrets_and_requests_go_on(
    mistake: dict[str, str], trouble: str, secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    Authority(secured.folder, "other")
    secured.write("wrong", "secret-but-wrong")
    places = {"folder": secured.folder, "tls_port": secured.tls_port}
    changes = {field: text.format(**places) for field, text in mistake.items()}
    metrics = Metrics()
    async with store_of(secured.settings(**changes), watch=metrics.store_called) as store:
        assert store.status == f"redis ({trouble}: in memory for now)"
        lease = await store.open(generation())
        store.append(lease, 0, [1, 2])
        resumed = await store.takeover("r")
        assert resumed is not None
        assert resumed.token_ids == (1, 2)
    told = [record.message for record in caplog.records if "Redis" in record.message]
    assert len(told) == 1, told
    assert re.fullmatch(rf"Redis: {trouble} \(.+\); requests go on in memory", told[0])
    assert "secret" not in caplog.text
    shown, _ = await metrics.instruments.fetched("text/plain")
    assert f'session_store_errors_total{{reason="{trouble}"}}' in shown.decode()


async def test_a_redis_that_asks_for_a_certificate_is_told(secured: Secured) -> None:
    settings = secured.settings(redis_tls_certificate_file="", redis_tls_private_key_file="")
    troubles = set()
    async with store_of(settings, watch=lambda *call: troubles.add(call[2])) as store:
        assert "in memory for now" in store.status
        # Whether it gets to say so before it has hung up is a matter of chance.
        await until(lambda: "certificate refused" in troubles)


def rights_on_the_page() -> list[str]:
    """The user that the documentation makes."""
    line = re.search(r"^ACL SETUSER paceline .+$", PAGE.read_text(), re.MULTILINE)
    assert line is not None
    return line[0].split()


async def use_all(store: SessionStore) -> None:
    """Everything that is ever asked of Redis."""
    lease = await store.open(generation("r"))
    store.append(lease, 0, [1, 2])
    store.place(lease, Placement("target"))
    store.finish(lease, FinishReason.STOP)
    store.remember_affinity("s", Placement("target"))
    await recorded(lease, 2)
    assert await store.look_up("r") is not None
    assert await store.takeover("r") is not None
    assert await store.takeover("other") is None
    await store.affinity("s")


@pytest.mark.parametrize("binary", BINARIES.values(), ids=BINARIES)
async def test_a_user_with_the_rights_on_the_page_can_do_all_and_needs_all(binary: Path) -> None:
    rights = rights_on_the_page()
    with ManagedRedis(binary) as server, server.client() as client:
        client.execute_command(*rights)
        settings = {"redis_url": server.url.replace("unix://", "unix://paceline:password@")}
        client.config_resetstat()
        async with store_of(settings) as store:
            await use_all(store)
            assert store.status == "redis"
        assert client.acl_log() == []
        used = {name.removeprefix("cmdstat_") for name in client.info("commandstats")}
    granted = {right.removeprefix("+") for right in rights if right.startswith("+")}
    assert granted == used - {"auth", "config|resetstat", "acl|log", "info"}


async def test_a_primary_that_was_demoted_is_left_for_the_new_one_at_its_address(
    redis_server: ManagedRedis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    relay, url = Relay(redis_server.path), f"unix://{tmp_path}/socket"
    with ManagedRedis() as new:
        async with relay.at(tmp_path / "socket"), store_of({"redis_url": url}) as store:
            before = await store.open(generation("before"))
            with redis_server.client() as client:
                client.replicaof(HOST, 1)
            relay.path = new.path
            lease = await store.open(generation("r"))
            store.append(lease, 0, [1, 2])
            await recorded(lease, 2)
            await until(lambda: before.num_recorded == 0 and store.num_unwritten == 0)
            assert store.status == "redis"
        with new.client() as client:
            assert client.exists("{paceline:before}:request", "{paceline:r}:request") == 2
    assert "Redis: a replica (You can't write against a read only replica" in caplog.text
