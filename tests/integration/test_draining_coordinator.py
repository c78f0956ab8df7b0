"""A coordinator that leaves in order: what runs ends or can be resumed, what comes is sent away."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from http_service import COMPLETIONS
from redis_server import ManagedRedis
from table_requests import PROMPT, expected, request
from waiting import NEVER_S, SOON_S, until
from whole_coordinator import coordinator
from worker_servers import WorkerServer, answer, target_server

from paceline.channel import open_channel
from paceline.client import Client
from paceline.v1 import coordinator_pb2 as pb
from paceline.v1.coordinator_pb2_grpc import CoordinatorServiceStub

MAX_TOKENS = 400
BODY = {"prompt": PROMPT, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
TEXT = expected(request(max_tokens=MAX_TOKENS))


@pytest.fixture
async def target() -> AsyncIterator[WorkerServer]:
    server = target_server()
    await server.start()
    yield server
    await server.kill()


def data_of(line: str) -> Any:
    data = line.removeprefix("data: ")
    return data if data == "[DONE]" else json.loads(data)


async def read(
    lines: AsyncIterator[str], at_least: int | None = None
) -> tuple[list[int], str, list[Any]]:
    """Tokens of a stream, up to its end or so many, with the last event's id and the documents."""
    token_ids: list[int] = []
    last_id, documents = "", []
    async for line in lines:
        if line.startswith("id: "):
            last_id = line.removeprefix("id: ")
        elif line.startswith("data: "):
            documents.append(data_of(line))
            choices = documents[-1].get("choices", []) if isinstance(documents[-1], dict) else []
            token_ids += [id for choice in choices for id in choice["token_ids"]]
            if at_least is not None and len(token_ids) >= at_least:
                break
    return token_ids, last_id, documents


STREAM = {**BODY, "stream": True, "return_token_ids": True, "request_id": "mine"}


async def test_what_runs_is_completed_while_what_comes_is_sent_away(target: WorkerServer) -> None:
    async with (
        coordinator([target]) as leaving,
        leaving.client as client,
        open_channel(leaving.grpc_address) as channel,
        client.stream("POST", COMPLETIONS, json=STREAM) as response,
    ):
        stub = CoordinatorServiceStub(channel)
        parts = aiter(stub.Generate(pb.GenerateRequest(**BODY)))
        first: pb.GenerateResponse = await anext(parts)
        leaving.http.drain()
        draining = asyncio.create_task(leaving.generator.drain(NEVER_S))
        await asyncio.sleep(0)
        assert not leaving.generator.status().ready

        health = await client.get("/health")
        assert (health.status_code, health.headers["connection"]) == (200, "close")
        ready = await client.get("/ready")
        assert (ready.status_code, "draining" in ready.json()["reason"]) == (503, True)
        refused = await client.post(COMPLETIONS, json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["x-should-retry"] == "true"
        with pytest.raises(grpc.aio.AioRpcError, match="draining") as failure:
            await stub.Generate(pb.GenerateRequest(**BODY)).read()
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE

        token_ids, _, documents = await read(response.aiter_lines())
        assert (token_ids, documents[-1]) == (TEXT, "[DONE]")
        rest = [id async for part in parts for id in part.token_ids]
        assert [*first.token_ids, *rest] == TEXT
        await asyncio.wait_for(draining, SOON_S)


async def test_a_stream_that_is_cut_says_so_and_goes_on_at_another_coordinator(
    target: WorkerServer, redis_server: ManagedRedis
) -> None:
    async with (
        coordinator([target], redis_url=redis_server.url) as leaving,
        coordinator([target], redis_url=redis_server.url) as other,
        leaving.client as client,
        other.client as other_client,
    ):
        async with client.stream("POST", COMPLETIONS, json=STREAM) as response:
            lines = response.aiter_lines()
            had, last_id, _ = await read(lines, at_least=1)
            await leaving.generator.drain(0.0)
            got, newer_id, documents = await read(lines)
        assert documents[-1]["error"]["code"] == "draining"
        token_ids = had + got
        assert len(token_ids) < len(TEXT)

        headers = {"last-event-id": newer_id or last_id}
        async with other_client.stream(
            "POST", COMPLETIONS, json=STREAM, headers=headers
        ) as response:
            rest, _, documents = await read(response.aiter_lines())
        assert token_ids + rest == TEXT
        assert documents[-1] == "[DONE]"


async def test_a_whole_answer_that_is_cut_can_be_asked_for_again(target: WorkerServer) -> None:
    async with coordinator([target]) as leaving, leaving.client as client:
        asking = asyncio.create_task(client.post(COMPLETIONS, json=BODY))
        await until(lambda: target.load.num_sequences > 0)
        await leaving.generator.drain(0.0)
        cut = await asking
        assert (cut.status_code, cut.json()["error"]["code"]) == (503, "draining")
        assert cut.headers["x-should-retry"] == "true"


async def test_a_grpc_client_goes_on_by_itself(
    target: WorkerServer, redis_server: ManagedRedis
) -> None:
    async with (
        coordinator([target], redis_url=redis_server.url) as leaving,
        coordinator([target], redis_url=redis_server.url) as other,
        Client(leaving.grpc_address, other.grpc_address) as client,
    ):
        token_ids: list[int] = []
        async for part in client.generate(pb.GenerateRequest(**BODY)):
            if not token_ids:
                await leaving.generator.drain(0.0)
            token_ids += part.token_ids
        assert token_ids == TEXT


async def test_a_grpc_client_that_is_sent_away_asks_the_next_coordinator_afresh(
    target: WorkerServer, redis_server: ManagedRedis
) -> None:
    """That one has no record of the request, and says so when it is asked to resume it."""
    async with (
        coordinator([target], redis_url=redis_server.url) as leaving,
        coordinator([target], redis_url=redis_server.url) as other,
        Client(leaving.grpc_address, other.grpc_address) as client,
    ):
        await leaving.generator.drain(0.0)
        parts = [part async for part in client.generate(pb.GenerateRequest(**BODY))]
        assert [id for part in parts for id in part.token_ids] == TEXT


async def test_a_request_that_is_being_admitted_is_waited_for(target: WorkerServer) -> None:
    async with coordinator([target]) as leaving:
        asking = asyncio.create_task(answer(leaving.generator, request(max_tokens=20)))
        await asyncio.sleep(0)
        await asyncio.wait_for(leaving.generator.drain(NEVER_S), SOON_S)
        assert (await asking).token_ids == TEXT[:20]


async def test_idle_connections_are_closed_at_once(target: WorkerServer) -> None:
    async with coordinator([target]) as leaving:
        reader, writer = await asyncio.open_connection("127.0.0.1", leaving.http.port)
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        said = await reader.readuntil(b'"ok"}')
        assert b"200 OK" in said
        assert b"connection: close" not in said
        leaving.http.drain()
        assert await asyncio.wait_for(reader.read(), SOON_S) == b""
        writer.close()


async def test_a_client_that_is_still_sending_its_request_at_the_end_is_sent_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("coordinator.http.server.STOP_GRACE_S", 0.1)
    async with coordinator([]) as leaving:
        reader, writer = await asyncio.open_connection("127.0.0.1", leaving.http.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n")
        writer.write(b"content-type: application/json\r\nexpect: 100-continue\r\n\r\n")
        assert b"100 Continue" in await reader.readline()
        leaving.http.drain()
        await leaving.http.stop()
        said = await asyncio.wait_for(reader.read(), 10)
        assert b"503 Service Unavailable" in said
        assert b"the coordinator shut down before the request was complete" in said
        assert "Traceback" not in caplog.text
        writer.close()
