"""Keys that callers show: who gets in, and what one tenant can find out about another."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from http_service import CHAT, COMPLETIONS, parsed
from table_requests import PROMPT, expected, request
from waiting import SOON_S, until
from whole_coordinator import Coordinator, coordinator
from worker_servers import WorkerServer, target_server

from paceline.api_keys import ApiKeys, OwnKey
from paceline.channel import Access, open_channel
from paceline.client import Client
from paceline.errors import NotFound, Unauthenticated
from paceline.server_security import ServerSecurity
from paceline.v1 import coordinator_pb2 as pb
from paceline.v1 import target_pb2_grpc

KEY, OTHER = "key-of-the-first-team", "key-of-the-other-team"
BODY: dict[str, Any] = {
    "prompt": PROMPT,
    "max_tokens": 30,
    "temperature": 0,
    "ignore_eos": True,
}
TEXT = expected(request(max_tokens=30))


@pytest.fixture
async def target() -> AsyncIterator[WorkerServer]:
    server = target_server()
    await server.start()
    yield server
    await server.kill()


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"first: {KEY}\nother: {OTHER}\n")
    return path


@pytest.fixture
async def guarded(target: WorkerServer, keys_file: Path) -> AsyncIterator[Coordinator]:
    security = ServerSecurity(keys=ApiKeys(str(keys_file)))
    async with coordinator([target], security=security) as running:
        yield running


def with_key(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("headers", [{}, with_key("nobody-has-this-key"), {"authorization": KEY}])
async def test_without_a_key_http_is_closed_but_to_probes(
    guarded: Coordinator, headers: dict[str, str]
) -> None:
    async with guarded.client_with(headers=headers) as client:
        for method, path in [
            ("POST", CHAT),
            ("POST", COMPLETIONS),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/table:7"),
            ("GET", "/status"),
            ("GET", "/openapi.json"),
            ("GET", "/nothing"),
        ]:
            refused = await client.request(method, path, json=BODY)
            assert refused.status_code == 401, path
            error = refused.json()["error"]
            assert (error["code"], error["param"]) == ("invalid_api_key", None)
            assert error["type"] == "invalid_request_error"
            assert refused.headers["www-authenticate"] == "Bearer"
            assert refused.headers["x-request-id"]
            assert KEY not in refused.text
        for path in ("/health", "/ready", "/metrics", "/version"):
            assert (await client.get(path)).status_code == 200, path


async def test_openais_client_gets_in_with_its_key_and_knows_the_error_without(
    guarded: Coordinator,
) -> None:
    options: dict[str, Any] = {"base_url": f"{guarded.url}/v1", "max_retries": 0}
    asked: dict[str, Any] = {"model": "table:7", "prompt": PROMPT, "max_tokens": 3}
    async with openai.AsyncOpenAI(api_key=KEY, **options) as client:
        assert (await client.completions.create(**asked)).usage
    async with openai.AsyncOpenAI(api_key="not-the-right-key", **options) as client:
        with pytest.raises(openai.AuthenticationError, match="not known"):
            await client.completions.create(**asked)


async def test_grpc_asks_for_the_same_keys(guarded: Coordinator) -> None:
    async with Client(guarded.grpc_address, api_key=KEY) as client:
        parts = [part async for part in client.generate(pb.GenerateRequest(**BODY))]
        assert [id for part in parts for id in part.token_ids] == TEXT
        assert (await client.status()).ready
    for wrong in ("", "nobody-has-this-key"):
        async with Client(guarded.grpc_address, api_key=wrong) as client:
            with pytest.raises(Unauthenticated):
                await client.status()
            with pytest.raises(Unauthenticated):
                await anext(client.generate(pb.GenerateRequest(**BODY)))
    async with open_channel(guarded.grpc_address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=""), timeout=SOON_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_keys_that_change_need_no_restart(guarded: Coordinator, keys_file: Path) -> None:
    async with guarded.client_with(headers=with_key("a-key-that-comes-later")) as client:
        assert (await client.get("/v1/models")).status_code == 401
        await asyncio.to_thread(keys_file.write_text, "a-key-that-comes-later")
        for _ in range(1000):
            if (await client.get("/v1/models")).status_code == 200:
                break
            await asyncio.sleep(0.02)
        assert (await client.get("/v1/models")).status_code == 200
    async with guarded.client_with(headers=with_key(KEY)) as client:
        assert (await client.get("/v1/models")).status_code == 401


async def test_a_request_can_be_resumed_by_its_own_tenant_only(guarded: Coordinator) -> None:
    asked = {**BODY, "request_id": "mine", "stream": True, "return_token_ids": True}
    async with guarded.client as client:

        async def resume(key: str) -> Any:
            headers = {**with_key(key), "last-event-id": "1"}
            return await client.post(COMPLETIONS, json=asked, headers=headers)

        whole = await client.post(COMPLETIONS, json=asked, headers=with_key(KEY))
        assert whole.status_code == 200
        stolen = await resume(OTHER)
        unknown = await client.post(
            COMPLETIONS,
            json={**asked, "request_id": "none"},
            headers={**with_key(OTHER), "last-event-id": "1"},
        )
        assert stolen.status_code == unknown.status_code == 404
        assert stolen.json()["error"]["message"] == unknown.json()["error"]["message"].replace(
            "none", "mine"
        )
        rest = parsed((await resume(KEY)).content)
        ids = [id for event in rest[:-1] for id in event.data["choices"][0]["token_ids"]]
        assert ids == TEXT[1:]
    message = pb.GenerateRequest(request_id="mine", resume_from=[1])
    async with Client(guarded.grpc_address, api_key=OTHER) as other:
        with pytest.raises(NotFound):
            await anext(other.generate(message))
    async with Client(guarded.grpc_address, api_key=KEY) as own:
        parts = [part async for part in own.generate(message)]
        assert [id for part in parts for id in part.token_ids] == TEXT[1:]


async def test_tenants_find_nothing_of_one_another_in_the_prefix_cache(
    guarded: Coordinator, target: WorkerServer
) -> None:
    cache = target.kv_cache
    long = {**BODY, "prompt": PROMPT * 20, "session_id": "the same name"}

    async def num_found(key: str) -> int:
        before = cache.num_hit_tokens
        async with guarded.client_with(headers=with_key(key)) as client:
            assert (await client.post(COMPLETIONS, json=long)).status_code == 200
        return cache.num_hit_tokens - before

    assert await num_found(KEY) == 0
    assert await num_found(OTHER) == 0
    assert await num_found(KEY) > 100
    async with Client(guarded.grpc_address, api_key=OTHER) as client:
        before = cache.num_hit_tokens
        async for _ in client.generate(pb.GenerateRequest(**long)):
            pass
        assert cache.num_hit_tokens - before > 100, "a tenant is the same over both front ends"


async def test_workers_ask_coordinators_for_a_key_and_take_one_that_comes_later(
    keys_file: Path, tmp_path: Path
) -> None:
    target = target_server()
    target.security = ServerSecurity(keys=ApiKeys(str(keys_file)))
    await target.start()
    own = tmp_path / "own"
    own.write_text("not-a-key-of-the-target")
    async with coordinator([], access=Access(OwnKey(str(own)))) as plain:
        pool = plain.pool
        pool.__init__([target.address], [], Access(OwnKey(str(own))))  # type: ignore[misc]
        pool.start()
        await until(lambda: "UNAUTHENTICATED" in pool.targets[0].reason)
        assert "not known" in pool.targets[0].reason
        own.write_text(KEY)
        await until(lambda: bool(pool.ready_targets()))
        await plain.generator.load_tokenizer()
        async with plain.client as client:
            answer = await client.post(COMPLETIONS, json={**BODY, "return_token_ids": True})
            assert answer.json()["choices"][0]["token_ids"] == TEXT
    async with open_channel(target.address) as channel:
        call = target_pb2_grpc.TargetServiceStub(channel).Verify()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    await target.kill()
