"""Two coordinators on one Redis, and one in memory, against a model of what is on record."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from coordinator.records import Lease, Placement, SessionStore
from coordinator.requests import FinishReason, Generation, GenerationRequest
from coordinator.session_store import open_session_store
from paceline.errors import InvalidRequest

IDS = st.sampled_from(["a", "{b}"])
SIDES = st.integers(0, 1)
GARBAGE = 2**32 - 1


@dataclass
class Known:
    """What a request's record ought to say, and who may write it."""

    session_id: str
    tokens: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    side: int | None = None
    """The store of the owner; None: it has gone, having written everything."""
    lease: Lease | None = None
    fenced: list[tuple[int, Lease]] = field(default_factory=list)


class Records(RuleBasedStateMachine):
    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.known: dict[str, Known] = {}
        self.placements: dict[str, Placement] = {}
        if self.url:
            with redis.Redis.from_url(self.url) as client:
                client.flushall()
        self.stores = [self.run(open_session_store(self.url))]
        self.stores.append(self.run(open_session_store(self.url)) if self.url else self.stores[0])
        self.serial = 0

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    def store(self, side: int) -> SessionStore:
        store: SessionStore = self.stores[side]
        return store

    @rule(side=SIDES, request_id=IDS)
    def open(self, side: int, request_id: str) -> None:
        self.serial += 1
        request = GenerationRequest(request_id, (1,), session_id=f"session {self.serial}")
        generation = Generation(request, (1,), seed=1, max_tokens=9, created=1)
        if request_id in self.known:
            with pytest.raises(InvalidRequest):
                self.run(self.store(side).open(generation))
        else:
            lease = self.run(self.store(side).open(generation))
            self.known[request_id] = Known(request.session_id, side=side, lease=lease)

    @rule(request_id=IDS, back=st.integers(0, 3), count=st.integers(0, 3))
    def append(self, request_id: str, back: int, count: int) -> None:
        known = self.known.get(request_id)
        if known is None or known.lease is None or known.side is None or known.finish_reason:
            return  # nobody adds to an answer that has ended
        start = max(len(known.tokens) - back, 0)
        new = [self.serial * 100 + len(known.tokens) + index for index in range(count)]
        known.tokens += new
        self.store(known.side).append(known.lease, start, known.tokens[start:])
        assert not known.lease.lost

    @rule(request_id=IDS, reason=st.sampled_from(FinishReason))
    def finish(self, request_id: str, reason: FinishReason) -> None:
        known = self.known.get(request_id)
        if known is None or known.lease is None or known.side is None or known.finish_reason:
            return
        known.finish_reason = reason
        self.store(known.side).finish(known.lease, reason)

    @rule()
    def write_without_right(self) -> None:
        for known in self.known.values():
            for side, lease in known.fenced:
                self.store(side).append(lease, len(lease.token_ids), [GARBAGE])
                self.store(side).finish(lease, FinishReason.LENGTH)

    @rule(request_id=IDS, side=SIDES)
    def take_over(self, request_id: str, side: int) -> None:
        resumed = self.run(self.store(side).takeover(request_id))
        known = self.known.get(request_id)
        if known is None:
            assert resumed is None
            return
        found = list(resumed.token_ids)
        everything_is_written = known.side in (None, side) or len(set(self.stores)) == 1
        if everything_is_written or resumed.finish_reason is not None:
            assert found == known.tokens
        assert found == known.tokens[: len(found)], "not what was committed"
        if everything_is_written:
            assert resumed.finish_reason is known.finish_reason
        assert resumed.finish_reason in (None, known.finish_reason)
        assert resumed.generation.request.session_id == known.session_id
        if known.lease is not None and known.side is not None:
            assert resumed.lease.epoch > known.lease.epoch
            known.fenced.append((known.side, known.lease))
        known.tokens, known.finish_reason = found, resumed.finish_reason
        known.side, known.lease = side, resumed.lease

    @rule(side=SIDES, session_id=IDS, worker=st.text(max_size=3))
    def remember(self, side: int, session_id: str, worker: str) -> None:
        # From one side only: who comes last of two writers behind is not defined.
        placement = self.placements[session_id] = Placement(worker)
        self.store(0).remember_affinity(session_id, placement)
        assert self.run(self.store(0).affinity(session_id)) == placement

    @precondition(lambda self: self.url)
    @rule(side=SIDES)
    def restart(self, side: int) -> None:
        self.run(self.store(side).aclose())
        self.stores[side] = self.run(open_session_store(self.url))
        for known in self.known.values():
            known.fenced = [(other, lease) for other, lease in known.fenced if other != side]
            if known.side == side:
                known.side = None
        if side == 0:
            for session_id, placement in self.placements.items():
                assert self.run(self.store(1).affinity(session_id)) == placement

    def teardown(self) -> None:
        try:
            for side in (0, 1) if self.url else ():
                self.restart(side)
            self.write_without_right()
            for request_id in self.known:
                self.take_over(request_id, 1)
        finally:
            for store in set(self.stores):
                self.run(store.aclose())
            self.runner.close()


def test_records_in_memory_are_what_was_committed() -> None:
    run_state_machine_as_test(Records, settings=settings(max_examples=50, stateful_step_count=30))


def test_records_in_redis_are_what_was_committed(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine is no outage; outages have tests of their own.
    monkeypatch.setattr("coordinator.session_store._REQUEST_BUDGET_S", 10)
    monkeypatch.setattr("coordinator.session_store._WRITER_BUDGET_S", 10)

    class RecordsInRedis(Records):
        url = redis_url

    run_state_machine_as_test(
        RecordsInRedis, settings=settings(max_examples=20, stateful_step_count=30)
    )
