"""A long answer, and something that happens in the middle of it."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager

from answers import Answer, Body, gather, grpc_request
from processes import Coordinator, Worker

from paceline.client import Client

LONG: Body = {"prompt": "Once upon a time", "ignore_eos": True, "max_tokens": 1200}
GREEDY: Body = {**LONG, "temperature": 0}
SEEDED: Body = {**LONG, "temperature": 1.0, "seed": 11}
FAULT_AT = 100
"""Tokens after which the fault happens."""


async def ask_with_fault(
    addresses: Sequence[str], body: Body, num_tokens: int, fault: Callable[[], None]
) -> Answer:
    """Ask over gRPC, and let the fault happen when so many tokens have come."""
    responses = []
    async with (
        Client(*addresses) as client,
        aclosing(client.generate(grpc_request(body))) as stream,
    ):
        has_happened = False
        async for response in stream:
            responses.append(response)
            if not has_happened and response.num_committed_tokens >= num_tokens:
                has_happened = True
                await asyncio.to_thread(fault)
    return gather(responses)


@contextmanager
def standing_still(worker: Worker | None) -> Iterator[None]:
    """Nothing comes from it inside, if there is one."""
    if worker is not None:
        worker.pause()
    try:
        yield
    finally:
        if worker is not None:
            worker.resume()


def in_the_middle(
    coordinator: Coordinator, fault: Callable[[], object], target: Worker | None = None
) -> Callable[[], None]:
    """The fault, and then proof that the answer was still being made.

    `target` stands still meanwhile: on some machines it would be done before anybody has looked.
    """

    def happen() -> None:
        with standing_still(target):
            fault()
            assert coordinator.read_status()["num_running"] == 1, (
                "the answer was complete before the fault"
            )

    return happen
