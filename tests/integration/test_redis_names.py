"""Names of Redis that lead nowhere, or that nobody answers for."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from session_stores import store_at, until

AWAY = "redis ({}: in memory for now)"


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at once in a while is looked at often."""
    monkeypatch.setattr("coordinator.shared_store._PROBE_INTERVAL_S", 0.01)
    monkeypatch.setattr("coordinator.session_store._WRITER_BUDGET_S", 0.05)


async def test_a_name_that_leads_nowhere_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    for url in ("redis://nowhere", "rediss://nowhere"):
        async with store_at(url) as store:
            await until(lambda store=store: store.status == AWAY.format("name not found"))
    for url in ("redis+sentinel://nowhere/service", "rediss+sentinel://nowhere/service"):
        async with store_at(url) as store:
            told = AWAY.format("Sentinel name not found")
            await until(lambda store=store, told=told: store.status == told)


@contextmanager
def silence(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Name servers that do not answer, and the names that they were asked for."""
    is_over, asked = threading.Event(), list[str]()

    def wait(host: str, *_: object, **__: object) -> None:
        asked.append(host)
        is_over.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    try:
        yield asked
    finally:
        is_over.set()


@pytest.mark.parametrize(
    "url", ["redis://a", "rediss://a", "redis+sentinel://a,b/service", "redis+cluster://a"]
)
async def test_name_servers_that_do_not_answer_take_no_threads_from_requests(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    probes: list[str] = []
    with silence(monkeypatch) as asked:
        async with store_at(url, lambda operation, *_: probes.append(operation)) as store:
            await until(lambda: len(probes) > 8)
            assert store.status == AWAY.format("unreachable") or "Sentinel" in store.status
            assert await asyncio.wait_for(asyncio.to_thread(sum, [1, 2]), 10) == 3
        assert sorted(asked) == sorted(set(asked)), "a name was asked for again meanwhile"
