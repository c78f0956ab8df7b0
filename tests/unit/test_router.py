"""Where sequences go: equal beginnings together, sessions where they were, nobody overloaded."""

import asyncio
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.records import Placement
from coordinator.router import LOAD_BOUND, ROUTING_TOKENS, Router
from paceline.errors import Unavailable
from paceline.rounds import WorkerInfo, WorkerLoad
from paceline.workers.pool import WorkerPool
from paceline.workers.worker import Worker

INFO = WorkerInfo("i", "1", model="table:1", numerics="equal")


def pool(num_targets: int, *drafters: str) -> WorkerPool:
    """A pool whose workers are all connected, to nobody."""
    workers = WorkerPool(
        [f"target-{n}:1" for n in range(num_targets)],
        [f"draft-{n}:1" for n in range(len(drafters))],
    )
    for worker in workers.targets:
        connect(worker, INFO)
    for worker, drafter in zip(workers.drafts, drafters, strict=True):
        connect(worker, replace(INFO, drafter=drafter))
    return workers


def connect(worker: Worker, info: WorkerInfo) -> None:
    worker.info = info
    worker._rounds = cast(Any, SimpleNamespace(load=WorkerLoad(), is_silent=False))
    worker._become("")


def shut_down(worker: Worker) -> None:
    worker._rounds = cast(Any, SimpleNamespace(load=WorkerLoad(draining=True), is_silent=False))


def fall_silent(worker: Worker) -> None:
    worker._rounds = cast(Any, SimpleNamespace(load=WorkerLoad(), is_silent=True))


def disconnect(worker: Worker) -> None:
    worker._rounds = None
    worker._become("gone")


def prompt(number: int, length: int = ROUTING_TOKENS) -> list[int]:
    return [number] * length


async def test_equal_beginnings_go_to_the_same_workers() -> None:
    router = Router(pool(5, "self", "self", "self"))
    places = []
    for tail in range(4):
        workers = router.place([*prompt(7), *[tail] * 50], None, None)
        places.append(((await workers.target(None)).address, workers.draft(None)))
        workers.leave()
    assert len({address for address, _ in places}) == 1
    assert len({draft for _, draft in places}) == 1


async def test_other_beginnings_are_spread_over_all() -> None:
    router = Router(pool(4))
    chosen: Counter[str] = Counter()
    for number in range(100):
        workers = router.place(prompt(number), None, None)
        chosen[(await workers.target(None)).address] += 1
        workers.leave()
    assert len(chosen) == 4
    assert min(chosen.values()) >= 10


async def test_a_worker_that_goes_moves_only_its_own_share() -> None:
    workers_of = pool(4)
    router = Router(workers_of)

    async def places() -> list[str]:
        found = []
        for number in range(40):
            workers = router.place(prompt(number), None, None)
            found.append((await workers.target(None)).address)
            workers.leave()
        return found

    before = await places()
    disconnect(workers_of.targets[2])
    after = await places()
    for old, new in zip(before, after, strict=True):
        assert new == old or old == "target-2:1"
    assert "target-2:1" not in after


async def test_no_worker_gets_much_more_than_its_share() -> None:
    router = Router(pool(4))
    chosen: Counter[str] = Counter()
    for _ in range(40):  # a prompt that everybody has
        chosen[(await router.place(prompt(1), None, None).target(None)).address] += 1
    assert max(chosen.values()) <= LOAD_BOUND * 40 / 4 + 2


async def test_a_session_stays_where_it_was() -> None:
    router = Router(pool(4, "self", "self"))
    affinity = Placement("target-3:1", "draft-1:1", "equal")
    for number in range(8):
        workers = router.place(prompt(number), affinity, None)
        assert (await workers.target(None)).address == "target-3:1"
        draft = workers.draft(None)
        assert draft is not None
        assert draft.address == "draft-1:1"
        assert workers.placement == affinity
        assert not workers.numerics_changed


async def test_a_session_whose_worker_is_gone_goes_elsewhere() -> None:
    workers_of = pool(2)
    disconnect(workers_of.targets[1])
    workers = Router(workers_of).place(prompt(1), Placement("target-1:1", "", "equal"), None)
    assert (await workers.target(None)).address == "target-0:1"


async def test_equal_arithmetic_comes_before_everything_else() -> None:
    workers_of = pool(3)
    workers_of.targets[0].info = replace(INFO, numerics="other")
    workers_of.targets[1].info = replace(INFO, numerics="other")
    for number in range(8):
        workers = Router(workers_of).place(prompt(number), Placement("", "", "equal"), None)
        assert (await workers.target(None)).address == "target-2:1"
    disconnect(workers_of.targets[2])
    workers = Router(workers_of).place(prompt(1), Placement("", "", "equal"), None)
    await workers.target(None)
    assert workers.numerics_changed
    assert workers.placement.numerics == "other"


async def test_a_lost_worker_is_followed_by_another_if_there_is_one() -> None:
    workers_of = pool(2, "self")
    workers = Router(workers_of).place(prompt(1), None, None)
    first = await workers.target(None)
    second = await workers.target(first)
    assert second is not first
    disconnect(first)
    assert await workers.target(second) is second
    draft = workers.draft(None)
    assert workers.draft(draft) is draft


async def test_a_draft_of_the_wanted_method_or_none() -> None:
    router = Router(pool(1, "suffix", "self"))
    draft = router.place(prompt(1), None, "self").draft(None)
    assert draft is not None
    assert draft.address == "draft-1:1"
    assert router.place(prompt(1), None, "eagle").draft(None) is None


async def test_a_sequence_waits_a_while_for_a_target_to_come() -> None:
    workers_of = pool(1)
    disconnect(workers_of.targets[0])
    workers = Router(workers_of).place(prompt(1), None, None)
    waiting = asyncio.create_task(workers.target(None))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    connect(workers_of.targets[0], INFO)
    assert await waiting is workers_of.targets[0]


async def test_without_a_target_it_fails_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.router.TARGET_WAIT_S", 0.01)
    with pytest.raises(Unavailable, match="no target worker is ready"):
        await Router(pool(0)).place(prompt(1), None, None).target(None)


async def test_those_that_have_left_are_not_counted_and_forgotten() -> None:
    router = Router(pool(2, "self"))
    for _ in range(50):
        workers = router.place(prompt(1), None, None)
        lost = await workers.target(None)
        await workers.target(lost)
        workers.draft(None)
        workers.leave()
    assert not router._num_sequences


async def test_a_draft_is_not_asked_behind_a_target_that_feeds_it_with_something_else() -> None:
    workers_of = pool(1, "fed", "self")
    fed = replace(INFO, feature_layers=(2,), feature_projection="one head")
    connect(workers_of.drafts[0], replace(fed, drafter="fed"))
    for of_target, is_fed in ((fed, True), (replace(fed, feature_projection="another"), False)):
        connect(workers_of.targets[0], of_target)
        for drafter, is_there in (("fed", is_fed), ("self", True)):
            workers = Router(workers_of).place(prompt(1), None, drafter)
            await workers.target(None)
            assert (workers.draft(None) is not None) == is_there


async def test_targets_that_are_only_listed_as_closed_are_tried_before_failing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    workers_of = pool(3)
    lost, draining, closed = workers_of.targets
    closed.closed = "its pod is not ready"
    shut_down(draining)
    router = Router(workers_of)
    running = router.place(prompt(1), None, None)
    assert await running.target(None) is lost, "others come last while one is ready"
    disconnect(lost)
    assert await running.target(lost) is closed, "a running sequence goes on there"
    assert await router.place(prompt(2), None, None).target(None) is closed
    (told,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "still answer: target-2:1 (its pod is not ready)" in told.message
    disconnect(closed)
    assert await running.target(closed) is draining
    connect(lost, INFO)
    assert await router.place(prompt(3), None, None).target(None) is lost


async def test_a_target_that_does_not_answer_is_tried_where_no_other_one_is() -> None:
    workers_of = pool(2, "self")
    silent, other = workers_of.targets
    fall_silent(silent)
    fall_silent(workers_of.drafts[0])
    router = Router(workers_of)
    for number in range(10):
        placed = router.place(prompt(number), None, None)
        assert (await placed.target(None), placed.draft(None)) == (other, None)
        placed.leave()
    other.closed = "its pod is not ready"
    assert await router.place(prompt(1), None, None).target(None) is other
    disconnect(other)
    assert await router.place(prompt(1), None, None).target(None) is silent, "it may be just slow"
