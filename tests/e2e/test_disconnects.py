"""A client that goes away takes its sequence with it, on every worker and however it asked."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest
from answers import OFF, Body, drafts, events, grpc_request, post
from observed import is_idle, load, metrics, soon, status
from processes import Coordinator, Stack

from paceline.client import Client

pytestmark = pytest.mark.timeout(900)

ENDLESS: Body = {
    "prompt": "Once upon a time",
    "ignore_eos": True,
    "temperature": 0,
    "max_tokens": 4000,
}
"""Takes longer than the test needs to leave."""
ABORTED = "request_success_total:abort"


async def leave_http_stream(coordinator: Coordinator, body: Body) -> None:
    async with aclosing(events(coordinator, body)) as stream:
        async for _ in stream:
            return


async def leave_http(coordinator: Coordinator, body: Body) -> None:
    request = asyncio.create_task(post(coordinator, body))

    async def is_running() -> bool:
        return (await status(coordinator))["num_running"] == 1

    await soon(is_running, "the request is being answered")
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


async def leave_grpc(coordinator: Coordinator, body: Body) -> None:
    async with (
        Client(coordinator.grpc_address) as client,
        aclosing(client.generate(grpc_request(body))) as stream,
    ):
        async for _ in stream:
            return


@pytest.mark.parametrize("leave", [leave_http_stream, leave_http, leave_grpc])
@pytest.mark.parametrize("speculation", [OFF, drafts("draft-model", 4)], ids=["off", "drafts"])
async def test_a_client_that_leaves_frees_its_sequence_everywhere(
    table_stack: Stack,
    leave: Callable[[Coordinator, Body], Awaitable[None]],
    speculation: Body,
) -> None:
    coordinator = table_stack.coordinator
    await soon(lambda: is_idle(coordinator), "nothing else runs")
    before = await metrics(coordinator)
    await leave(coordinator, {**ENDLESS, "speculation": speculation})
    await soon(lambda: is_idle(coordinator), "the sequence is gone everywhere")
    after = await metrics(coordinator)
    assert after[ABORTED] - before.get(ABORTED, 0) == 1
    num_tokens = after["generation_tokens_total"] - before["generation_tokens_total"]
    assert num_tokens < ENDLESS["max_tokens"]
    for worker in table_stack.workers:
        assert (await load(worker)).num_sequences == 0
