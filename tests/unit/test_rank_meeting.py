"""Who may be of a group, and who is told at once that he may not."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest
from ports import HOST, number_of, reserve_port
from torch.distributed import Store
from waiting import SOON_S

from paceline.engine.ranks.meeting import meet_others, say_complete
from paceline.engine.ranks.place import GroupBroken, RankPlace
from paceline.errors import InvalidConfig

TIMEOUT = timedelta(seconds=SOON_S)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    with reserve_port() as reserved:
        number = number_of(reserved)
    monkeypatch.setenv("MASTER_ADDR", HOST)
    monkeypatch.setenv("MASTER_PORT", str(number))
    return number


def place(rank: int, port: int, size: int = 2) -> RankPlace:
    return RankPlace(rank, size, HOST, port)


@contextmanager
def coming(*places: RankPlace) -> "Iterator[list[Future[Store]]]":
    """All at once, each as if in a process of its own."""
    with ThreadPoolExecutor(len(places)) as threads:
        yield [threads.submit(meet_others, one, TIMEOUT) for one in places]


def test_ranks_of_one_size_meet_and_whoever_comes_later_is_sent_away(port: int) -> None:
    with coming(place(0, port), place(1, port)) as (first, second):
        store, _ = first.result(), second.result()
    say_complete(store)
    with pytest.raises(GroupBroken, match=f"at {HOST}:{port} is complete, and its rank 1 is"):
        meet_others(place(1, port), TIMEOUT)


def test_a_rank_that_comes_twice_before_the_group_is_complete_is_told_of(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with coming(place(0, port), place(1, port)) as (first, second):
        store, _ = first.result(), second.result()
    assert not caplog.messages
    meet_others(place(1, port), TIMEOUT)
    assert f"another process came as rank 1 to {HOST}:{port} before" in caplog.messages[0]
    del store


def test_a_rank_of_another_size_is_told_that_of_the_others(port: int) -> None:
    with coming(place(0, port), place(1, port)) as (first, second):
        store, _ = first.result(), second.result()
    with pytest.raises(InvalidConfig, match="tensor_parallel_size is 3 at rank 2; expected 2"):
        meet_others(place(2, port, size=3), TIMEOUT)
    del store


def test_a_port_that_is_taken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with reserve_port() as reserved:
        reserved.listen()
        number = number_of(reserved)
        monkeypatch.setenv("MASTER_ADDR", HOST)
        monkeypatch.setenv("MASTER_PORT", str(number))
        with pytest.raises(InvalidConfig, match=f"MASTER_PORT is {number}, where rank 0 cannot"):
            meet_others(place(0, number), TIMEOUT)
