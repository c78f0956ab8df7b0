"""Stores for one test, requests to record in them, and waiting for what is written behind."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waiting import until

from coordinator.records import Lease, SessionStore
from coordinator.requests import Generation, GenerationRequest
from coordinator.session_store import Watch, open_session_store


@asynccontextmanager
async def store_at(url: str, watch: Watch = lambda *_: None) -> AsyncIterator[SessionStore]:
    store = await open_session_store(url, watch=watch)
    try:
        yield store
    finally:
        await store.aclose()


def generation(request_id: str = "r", session_id: str = "s") -> Generation:
    request = GenerationRequest(
        request_id,
        prompt=(1, 2, 3),
        stop=("stop",),
        logit_bias=((4, -1.5),),
        session_id=session_id,
    )
    return Generation(request, (1, 2, 3), seed=2**63 + 1, max_tokens=10, created=123)


async def recorded(lease: Lease, length: int) -> None:
    """Wait until so many of its tokens are known to be in Redis."""
    await until(lambda: lease.num_recorded == length)
