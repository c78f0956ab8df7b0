"""The coordinator's gRPC service and its client, on real workers."""

import asyncio
from contextlib import aclosing
from typing import Any

import grpc
import pytest
from coordinator_server import CoordinatorServer, message, parts_of, token_ids_of
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from grpc_status import rpc_status
from real_tokenizers import table_tokenizer
from table_requests import expected, request
from waiting import SOON_S
from worker_servers import Cluster, answer, cluster, target_server

from coordinator.admission import Limits
from paceline.channel import open_channel
from paceline.client import Client
from paceline.errors import InvalidRequest, NotFound, Unavailable
from paceline.v1 import coordinator_pb2 as pb
from paceline.v1.coordinator_pb2_grpc import CoordinatorServiceStub

REASONS = {"INVALID_ARGUMENT": "INVALID_REQUEST", "NOT_FOUND": "NOT_FOUND"}
PROMPT_IDS = [256, *b"the rain in"]


@pytest.mark.parametrize("method", ["", "off", "auto", "self"])
async def test_an_answer_streams_with_its_prompt_first_and_its_figures_last(
    method: str, stub: CoordinatorServiceStub
) -> None:
    asked = message(speculation=pb.Speculation(method=method, num_speculative_tokens=3))
    parts = await parts_of(stub.Generate(asked))
    plain = expected(request(prompt="the rain in", max_tokens=30))
    assert token_ids_of(parts) == plain
    assert "".join(part.text for part in parts) == table_tokenizer().decode(plain)
    assert [part.num_committed_tokens for part in parts] == [
        len(token_ids_of(parts[: index + 1])) for index in range(len(parts))
    ]
    assert list(parts[0].prompt_token_ids) == PROMPT_IDS
    assert not any(part.prompt_token_ids for part in parts[1:])
    assert {part.request_id for part in parts} == {parts[0].request_id}
    *others, last = parts
    assert not any(part.finish_reason or part.HasField("usage") for part in others)
    assert last.finish_reason == pb.FINISH_REASON_LENGTH
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (len(PROMPT_IDS), 30)
    assert last.speculative_decoding.num_committed_tokens == 30


async def test_prompts_are_texts_ids_and_conversations(stub: CoordinatorServiceStub) -> None:
    text = await parts_of(stub.Generate(message()))
    ids = message(prompt_token_ids=pb.TokenIds(token_ids=PROMPT_IDS))
    assert ids.WhichOneof("input") == "prompt_token_ids"
    assert token_ids_of(await parts_of(stub.Generate(ids))) == token_ids_of(text)
    chat = message(chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="Hi")]))
    parts = await parts_of(stub.Generate(chat))
    assert list(parts[0].prompt_token_ids)[2:4] == list(b"Hi")


async def test_a_seed_gives_the_same_text_and_none_gives_others(
    stub: CoordinatorServiceStub,
) -> None:
    seeded = [
        token_ids_of(await parts_of(stub.Generate(message(temperature=1.0, seed=2**64 - 1))))
        for _ in range(2)
    ]
    assert seeded[0] == seeded[1]
    free = [token_ids_of(await parts_of(stub.Generate(message(temperature=1.0)))) for _ in "ab"]
    assert free[0] != free[1]


@pytest.mark.parametrize("resume_from", [0, 1, 7, 29, 30])
async def test_a_finished_answer_is_resumed_from_any_token(
    resume_from: int, stub: CoordinatorServiceStub
) -> None:
    whole = await parts_of(stub.Generate(message(request_id="r")))
    again = pb.GenerateRequest(request_id="r", resume_from=[resume_from])
    parts = await parts_of(stub.Generate(again))
    assert token_ids_of(parts) == token_ids_of(whole)[resume_from:]
    text = "".join(part.text for part in whole)
    assert "".join(part.text for part in parts) == text[resume_from:]
    assert parts[-1].finish_reason == pb.FINISH_REASON_LENGTH
    assert parts[-1].usage.completion_tokens == 30


async def test_an_answer_broken_off_is_resumed_to_its_end(
    running: Cluster, stub: CoordinatorServiceStub
) -> None:
    call = stub.Generate(message(request_id="r", max_tokens=300))
    had: list[int] = []
    async for part in call:
        had += part.token_ids
        if len(had) >= 20:
            break
    call.cancel()
    await running.until_free()
    again = pb.GenerateRequest(request_id="r", resume_from=[len(had)])
    parts = await parts_of(stub.Generate(again))
    plain = expected(request(prompt="the rain in", max_tokens=300))
    assert [*had, *token_ids_of(parts)] == plain


async def test_a_resume_that_is_refused_does_not_disturb_the_running_answer(
    stub: CoordinatorServiceStub,
) -> None:
    call = stub.Generate(message(request_id="r", max_tokens=300))
    had = [*(await anext(aiter(call))).token_ids]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await parts_of(stub.Generate(pb.GenerateRequest(request_id="r", resume_from=[301])))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    async for part in call:
        had += part.token_ids
    assert had == expected(request(prompt="the rain in", max_tokens=300))


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        (message(temperature=3.0), "INVALID_ARGUMENT", "temperature: is 3.0"),
        (message(max_tokens=5000), "INVALID_ARGUMENT", "max_tokens: 5000"),
        (message(n=2**32 - 1), "INVALID_ARGUMENT", "n: is 4294967295; expected 1 to 16"),
        (message(logit_bias={999: 1.0}), "INVALID_ARGUMENT", "logit_bias: is 999"),
        (
            message(logit_bias=dict.fromkeys(range(261), -100.0)),
            "INVALID_ARGUMENT",
            "ban every token",
        ),
        (pb.GenerateRequest(max_tokens=3), "INVALID_ARGUMENT", "input: is not set"),
        (message(chat=pb.Chat()), "INVALID_ARGUMENT", "chat.messages: is empty"),
        (
            message(speculation=pb.Speculation(method="eagle")),
            "INVALID_ARGUMENT",
            "speculation.method: 'eagle'",
        ),
        (
            pb.GenerateRequest(request_id="r", resume_from=[3]),
            "NOT_FOUND",
            "request_id: no request",
        ),
        (message(request_id="r", resume_from=[3]), "INVALID_ARGUMENT", "beside resume_from"),
    ],
)
async def test_errors_arrive_as_statuses_that_name_the_field(
    asked: pb.GenerateRequest, status: str, words: str, stub: CoordinatorServiceStub
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await parts_of(stub.Generate(asked))
    assert failure.value.code().name == status
    assert words in (failure.value.details() or "")
    (info,) = details_of(failure.value)
    assert (info.domain, info.reason) == ("paceline", REASONS[status])
    if ":" in words:
        assert info.metadata["field"] == words.partition(":")[0]
    assert token_ids_of(await parts_of(stub.Generate(message(max_tokens=3))))


async def test_who_comes_when_there_is_no_room_is_told_when_to_come_again() -> None:
    limits = Limits(max_running_requests=1, max_waiting_requests=0)
    async with cluster([target_server()], limits=limits) as running:
        await running.until_ready()
        server = CoordinatorServer(running)
        await server.start()
        async with open_channel(server.address) as channel:
            stub = CoordinatorServiceStub(channel)
            call = stub.Generate(message(max_tokens=4000))
            await call.read()
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await parts_of(stub.Generate(message()))
            call.cancel()
        info, retry = details_of(failure.value)
        assert info.reason == "OVERLOADED"
        assert retry.retry_delay.ToSeconds() == 1
        await server.kill()


def details_of(failure: grpc.aio.AioRpcError) -> list[Any]:
    """As any client of Google's APIs reads them."""
    found = []
    for detail in rpc_status.from_call(failure).details:
        kind = ErrorInfo if detail.Is(ErrorInfo.DESCRIPTOR) else RetryInfo
        found.append(kind.FromString(detail.value))
    return found


async def test_a_request_nobody_can_answer_leaves_the_others_alone(
    running: Cluster, stub: CoordinatorServiceStub
) -> None:
    bans = dict.fromkeys(range(261), -100.0)
    good = request("off", prompt="the rain in", max_tokens=300)
    task = asyncio.create_task(answer(running.generator, good))
    for _ in range(5):
        with pytest.raises(grpc.aio.AioRpcError, match="ban every token"):
            await parts_of(stub.Generate(message(logit_bias=bans)))
    assert (await task).token_ids == expected(good)
    await running.until_free()


async def test_the_status_tells_the_workers_and_the_sums(
    running: Cluster, stub: CoordinatorServiceStub
) -> None:
    await parts_of(stub.Generate(message()))
    status = await stub.GetStatus(pb.GetStatusRequest())
    assert status.ready
    assert status.num_running == 0
    assert status.speculative_decoding.num_committed_tokens == 30
    target, draft = status.workers
    assert (target.role, target.model, target.numerics) == ("target", "table:7", "table")
    assert (draft.role, draft.drafter) == ("draft", "self")
    assert target.ready
    assert target.address == running.targets[0].address
    await running.drafts[0].kill()
    async with asyncio.timeout(SOON_S):
        while running.pool.ready_drafts():
            await running.pool.until_changed()
    _, draft = (await stub.GetStatus(pb.GetStatusRequest())).workers
    assert not draft.ready
    assert "UNAVAILABLE" in draft.reason or "ended" in draft.reason


async def test_a_client_goes_on_at_another_coordinator(
    running: Cluster, server: CoordinatorServer
) -> None:
    other = CoordinatorServer(running)
    await other.start()
    parts: list[pb.GenerateResponse] = []
    async with (
        Client(server.address, other.address) as client,
        aclosing(client.generate(message(max_tokens=1000))) as answers,
    ):
        async for part in answers:
            parts.append(part)
            if len(parts) == 5:
                await server.kill()
    assert token_ids_of(parts) == expected(request(prompt="the rain in", max_tokens=1000))
    assert parts[-1].finish_reason == pb.FINISH_REASON_LENGTH
    await other.kill()


async def test_a_client_raises_our_errors(server: CoordinatorServer) -> None:
    async with Client(server.address) as client:
        with pytest.raises(InvalidRequest, match="temperature"):
            await parts_of(client.generate(message(temperature=3.0)))
        with pytest.raises(NotFound):
            await parts_of(client.generate(pb.GenerateRequest(request_id="r", resume_from=[3])))
    await server.kill()


async def test_a_coordinator_that_drains_takes_nothing_new(running: Cluster) -> None:
    await running.generator.drain(1.0)
    with pytest.raises(Unavailable, match="draining"):
        await running.generator.prepare(request())
