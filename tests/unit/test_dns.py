"""What a DNS source makes of answers, failures and lost workers; its time passes at once."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from virtual_time import run_virtually

from paceline.workers.discovery import dns
from paceline.workers.discovery.dns import UNLISTED, DnsFollower, NoSuchName
from paceline.workers.discovery.endpoint import Endpoint, Sighting
from paceline.workers.discovery.source_names import DnsSource

A, B = Endpoint("10.0.0.1:7"), Endpoint("10.0.0.2:7")
NOWHERE = NoSuchName()
AWAY = socket.gaierror(socket.EAI_AGAIN, "try again")


class Name:
    """A name whose answers a test sets."""

    def __init__(self, *answer: str) -> None:
        self.answer: list[str] | Exception = list(answer)
        self.num_asked = 0
        self.sighting = Sighting("dns:///name:7", lambda: None)
        self.follower = DnsFollower(DnsSource("name", 7), self.sighting, self._look_up)

    async def _look_up(self, host: str, port: int) -> list[str]:
        assert (host, port) == ("name", 7)
        self.num_asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    @property
    def seen(self) -> list[Endpoint]:
        return list(self.sighting.endpoints)


def follow(name: Name, story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        task = asyncio.create_task(name.follower.run())
        await asyncio.sleep(0.1)
        await story()
        task.cancel()

    run_virtually(main())


def test_new_addresses_are_seen_with_the_next_question() -> None:
    name = Name("10.0.0.1")

    async def story() -> None:
        assert name.seen == [A]
        name.answer = ["10.0.0.2", "10.0.0.1"]
        await asyncio.sleep(5.0)
        assert name.seen == [A, B]
        assert name.num_asked == 2

    follow(name, story)


def test_an_address_that_is_not_listed_is_closed_and_goes_when_its_worker_is_lost() -> None:
    name = Name("10.0.0.1", "10.0.0.2")

    async def story() -> None:
        name.answer = ["10.0.0.1"]
        await asyncio.sleep(50.0)
        assert name.seen == [A, Endpoint(B.address, closed=UNLISTED)]
        name.follower.worker_lost(B.address)
        await asyncio.sleep(1.1)
        assert name.seen == [A]
        name.answer = ["10.0.0.1", "10.0.0.2"]
        await asyncio.sleep(5.0)
        assert name.seen == [A, B]

    follow(name, story)


def test_a_listed_address_stays_although_its_worker_is_lost() -> None:
    name = Name("10.0.0.1")

    async def story() -> None:
        for _ in range(5):
            name.follower.worker_lost(A.address)
            await asyncio.sleep(0.1)
        assert name.seen == [A]
        await asyncio.sleep(0.6)
        assert name.num_asked == 2  # sooner than after five seconds, and once for all
        name.follower.worker_lost("10.9.9.9:7")  # not from here
        await asyncio.sleep(2.0)
        assert name.num_asked == 2

    follow(name, story)


def test_a_resolver_that_fails_takes_nothing_back() -> None:
    name = Name("10.0.0.1")

    async def story() -> None:
        name.answer = AWAY
        name.follower.worker_lost(A.address)
        await asyncio.sleep(100.0)
        assert name.seen == [A]
        assert name.sighting.problem == "cannot be resolved: try again"
        name.answer = ["10.0.0.2"]
        await asyncio.sleep(5.0)
        assert name.seen == [B, Endpoint(A.address, closed=UNLISTED)]
        assert name.sighting.problem == ""

    follow(name, story)


def test_that_there_is_no_such_name_is_believed_the_third_time() -> None:
    name = Name("10.0.0.1")

    async def story() -> None:
        name.answer = NOWHERE
        await asyncio.sleep(6.5)
        assert name.num_asked == 3
        assert name.seen == [A]
        await asyncio.sleep(1.0)
        assert name.seen == [Endpoint(A.address, closed=UNLISTED)]
        assert name.sighting.problem == "the name has no address"
        name.answer = ["10.0.0.1"]
        await asyncio.sleep(5.0)
        assert name.seen == [A]

    follow(name, story)


def test_failures_in_between_do_not_make_denials_fewer_or_more() -> None:
    name = Name("10.0.0.1")

    async def story() -> None:
        for answer in (NOWHERE, ["10.0.0.1"], NOWHERE, ["10.0.0.1"], NOWHERE, ["10.0.0.1"]):
            name.answer = answer
            await asyncio.sleep(5.0)
        assert name.seen == [A]

    follow(name, story)


@pytest.mark.parametrize(
    ("families", "expected"),
    [
        ("46", ["10.0.0.1"]),
        ("6", ["fd00::1"]),
        ("4", ["10.0.0.1"]),
    ],
)
async def test_a_name_with_both_families_counts_with_its_ipv4_addresses(
    monkeypatch: pytest.MonkeyPatch, families: str, expected: list[str]
) -> None:
    known = {
        "4": (socket.AF_INET, 1, 6, "", ("10.0.0.1", 7)),
        "6": (socket.AF_INET6, 1, 6, "", ("fd00::1", 7, 0, 0)),
    }
    found = [known[family] for family in families]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert await dns._Resolver().look_up("name", 7) == expected


async def test_no_such_name_is_told_from_a_resolver_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(number: int) -> Callable[..., Any]:
        def getaddrinfo(*_: Any, **__: Any) -> Any:
            raise socket.gaierror(number, "no")

        return getaddrinfo

    monkeypatch.setattr(socket, "getaddrinfo", fail(socket.EAI_NONAME))
    with pytest.raises(NoSuchName):
        await dns._Resolver().look_up("name", 7)
    monkeypatch.setattr(socket, "getaddrinfo", fail(socket.EAI_AGAIN))
    with pytest.raises(OSError, match="no"):
        await dns._Resolver().look_up("name", 7)
