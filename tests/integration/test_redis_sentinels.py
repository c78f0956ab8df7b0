"""Records behind Sentinels: who the primary is, and what happens when it is lost."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from authority import Authority
from http_service import COMPLETIONS
from ports import HOST, number_of, reserve_port
from redis_sentinels import SERVICE, ManagedSentinels
from redis_server import tls_options
from session_stores import until
from table_requests import PROMPT, expected, request
from whole_coordinator import coordinator
from worker_servers import WorkerServer, target_server

from coordinator.redis_access import RedisSettings, access_to_redis
from coordinator.session_store import open_session_store

MAX_TOKENS = 60
BODY = {"prompt": PROMPT, "max_tokens": MAX_TOKENS, "temperature": 0, "return_token_ids": True}
TOKENS = expected(request(max_tokens=MAX_TOKENS))


@pytest.fixture
async def target() -> AsyncIterator[WorkerServer]:
    server = target_server()
    await server.start()
    yield server
    await server.kill()


async def test_sentinels_are_asked_all_at_once_and_what_is_wrong_is_told(tmp_path: Path) -> None:
    for name in ("secret", "wrong-secret"):
        (tmp_path / name).write_text(name)

    async def status(hosts: str, service: str = SERVICE, password: str = "secret") -> str:
        settings = RedisSettings(
            redis_url=f"redis+sentinel://{hosts}/{service}",
            sentinel_password_file=str(tmp_path / password),
        )
        access = access_to_redis(settings)
        store = await open_session_store(settings.redis_url, access=access)
        await store.aclose()
        return store.status.removesuffix(": in memory for now)").removeprefix("redis (")

    with ManagedSentinels(2, sentinel_password="secret") as servers, reserve_port() as closed:
        hung, good = servers.addresses
        servers.pause_sentinel(0)
        assert await status(f"{hung},{good}") == "redis"
        nobody = f"{HOST}:{number_of(closed)}"
        assert await status(f"{nobody},{good},{hung}") == "redis"
        assert await status(good, "other") == "service not known to Sentinels"
        assert await status(good, password="wrong-secret") == "Sentinel password refused"
        assert await status(nobody) == "Sentinel unreachable"


async def test_when_the_primary_dies_no_request_notices_and_records_go_on_at_the_new_one(
    target: WorkerServer, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("coordinator", "coordinator")
    (tmp_path / "password").write_text("secret-of-redis\n")
    (tmp_path / "sentinel").write_text("secret-of-sentinels\n")
    tls = tls_options(authority, authority.issue("redis", HOST))
    with ManagedSentinels(1, tls, "secret-of-redis", "secret-of-sentinels") as servers:
        settings = RedisSettings(
            redis_url=servers.url,
            redis_password_file=str(tmp_path / "password"),
            sentinel_password_file=str(tmp_path / "sentinel"),
            redis_tls_ca_file=authority.ca_file,
            redis_tls_certificate_file=own.certificate,
            redis_tls_private_key_file=own.private_key,
        )
        access = access_to_redis(settings)
        answered: list[str] = []
        async with (
            coordinator([target], redis_url=servers.url, redis_access=access) as running,
            running.client as client,
        ):
            assert running.generator.status().session_store == "redis"

            async def ask() -> None:
                request_id = f"r{len(answered)}"
                answered.append(request_id)
                body = {**BODY, "request_id": request_id}
                answer = (await client.post(COMPLETIONS, json=body)).json()
                assert answer["choices"][0]["token_ids"] == TOKENS, answer

            async def ask_on() -> None:
                while not is_over.is_set():
                    await ask()

            is_over = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(4):
                    tasks.create_task(ask_on())
                await until(lambda: len(answered) > 12)
                servers.primary.kill()
                await until(lambda: "memory" in running.generator.status().session_store)
                await until(lambda: running.generator.status().session_store == "redis")
                is_over.set()
            await until(lambda: running.generator.status().num_unwritten_records == 0)
            other = await open_session_store(servers.url, access=access)
            for request_id in answered:
                found = await other.look_up(request_id)
                assert found is not None, request_id
                assert list(found.token_ids) == TOKENS
            await other.aclose()
        with servers.replica.client() as client:
            assert client.info("replication")["role"] == "master"
            assert client.dbsize() >= 3 * len(answered)
