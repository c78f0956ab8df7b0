"""Streams of several choices as one."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from coordinator.choices import interleave


class Stream:
    """Yields `count` steps, each a turn of the loop apart, then maybe fails."""

    def __init__(self, name: str, count: int, error: Exception | None = None) -> None:
        self.name = name
        self.num_made = 0
        self.is_closed = False
        self._count = count
        self._error = error

    async def steps(self) -> AsyncGenerator[str, None]:
        try:
            for number in range(self._count):
                await asyncio.sleep(0)
                self.num_made += 1
                yield f"{self.name}{number}"
            if self._error is not None:
                raise self._error
        finally:
            self.is_closed = True


def begun() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


async def all_of(*streams: Stream, may_follow: asyncio.Event | None = None) -> list[str]:
    merged = interleave([stream.steps() for stream in streams], may_follow or begun())
    return [step async for step in merged]


async def test_every_stream_keeps_its_order_and_none_waits_for_another() -> None:
    steps = await all_of(Stream("a", 5), Stream("b", 3), Stream("c", 5))
    for name, count in (("a", 5), ("b", 3), ("c", 5)):
        assert [step for step in steps if step[0] == name] == [f"{name}{i}" for i in range(count)]
    assert {step[0] for step in steps[:4]} == {"a", "b", "c"}


async def test_one_stream_is_passed_on_as_it_is() -> None:
    assert await all_of(Stream("a", 3)) == ["a0", "a1", "a2"]
    with pytest.raises(KeyError):
        await all_of(Stream("a", 1, KeyError()))


async def test_the_others_begin_when_they_may() -> None:
    may_follow = asyncio.Event()
    seen = []
    streams = [Stream("a", 6), Stream("b", 2)]
    merged = interleave([stream.steps() for stream in streams], may_follow)
    async for step in merged:
        seen.append(step)
        if step == "a2":
            assert streams[1].num_made == 0
            may_follow.set()
    assert seen[:3] == ["a0", "a1", "a2"]
    assert {"b0", "b1"} <= set(seen[3:])


async def test_the_others_follow_a_first_one_that_ends_without_a_sign() -> None:
    assert await all_of(Stream("a", 0), Stream("b", 2), may_follow=asyncio.Event()) == ["b0", "b1"]


@pytest.mark.parametrize("failing", [0, 1, 2])
async def test_the_others_go_on_to_their_end_before_a_failure_is_told(failing: int) -> None:
    streams = [Stream(name, 1 if i == failing else 5) for i, name in enumerate("abc")]
    streams[failing] = Stream("abc"[failing], 1, KeyError("its own"))
    steps = []
    with pytest.raises(KeyError, match="its own"):
        async for step in interleave([stream.steps() for stream in streams], begun()):
            steps.append(step)
    assert len(steps) == 11
    assert all(stream.is_closed for stream in streams)


async def test_a_first_one_that_fails_before_the_others_began_is_the_end() -> None:
    others = [Stream("b", 3), Stream("c", 3)]
    with pytest.raises(KeyError):
        await all_of(Stream("a", 0, KeyError()), *others, may_follow=asyncio.Event())
    assert [other.num_made for other in others] == [0, 0]


async def test_closing_it_closes_all() -> None:
    streams = [Stream(name, 1000) for name in "abc"]
    async with aclosing(interleave([stream.steps() for stream in streams], begun())) as merged:
        for _ in range(7):
            await anext(merged)
    assert all(stream.is_closed for stream in streams)


async def test_steps_that_nobody_takes_hold_all_up() -> None:
    streams = [Stream(name, 1000) for name in "abc"]
    async with aclosing(interleave([stream.steps() for stream in streams], begun())) as merged:
        await anext(merged)
        for _ in range(100):
            await asyncio.sleep(0)
        assert sum(stream.num_made for stream in streams) <= 7
