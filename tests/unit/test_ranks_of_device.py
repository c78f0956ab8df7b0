"""The device thread of rank 0: how it calls the other ranks, and what it does when one is lost."""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import Queue

import pytest
from waiting import SOON_S, until, wait_until

from paceline.engine import device_worker
from paceline.engine.device_worker import Caller, DeviceWorker, device_thread
from paceline.engine.ranks.place import GroupBroken
from paceline.rounds import WorkerLoad


@dataclass(frozen=True)
class Round:
    sequence_id: str


@dataclass
class Stepper:
    """Answers each round with itself; `fault` is raised by a pass."""

    fault: Exception | None = None
    waiting: list[Round] = field(default_factory=list)
    load: WorkerLoad = WorkerLoad()

    def accept(self, round: Round, waited_s: float) -> Round | None:
        self.waiting.append(round)
        return None

    def close(self, sequence_id: str) -> None: ...

    def step(self) -> list[Round]:
        if self.fault:
            raise self.fault
        results, self.waiting = self.waiting, []
        return results

    def abandon(self, message: str) -> list[Round]:
        raise AssertionError("callers must not be told: they go elsewhere")

    def is_waiting(self, sequence_id: str) -> bool:
        return bool(self.waiting)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting)


@dataclass
class Ranks:
    """Other ranks, which do as the test says."""

    on_tick: Callable[[], bool] = bool
    calls: list[str] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)

    def tick(self) -> bool:
        self._note("tick")
        return self.on_tick()

    def stop(self) -> None:
        self._note("stop")

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self.threads.add(threading.current_thread().name)


Worker = DeviceWorker[Round, Round]


@pytest.fixture
def stepper() -> Stepper:
    return Stepper()


@pytest.fixture
def ranks() -> Ranks:
    return Ranks()


@pytest.fixture
def worker(stepper: Stepper, ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr(device_worker, "IDLE_TICK_S", 0.01)
    monkeypatch.setattr(device_worker, "LOOK_S", 0.01)
    worker = Worker(stepper, device_thread("device"), ranks)
    worker.start()
    yield worker
    worker.stop()


def fails(error: Exception) -> Callable[[], bool]:
    def fail() -> bool:
        raise error

    return fail


def test_ranks_are_called_again_and_again_while_nothing_is_to_be_done(
    worker: Worker, ranks: Ranks
) -> None:
    wait_until(lambda: len(ranks.calls) >= 3)


def test_ranks_are_called_between_passes_of_a_worker_that_never_rests(
    worker: Worker, ranks: Ranks
) -> None:
    answered: Queue[None] = Queue()
    has_seen_ticks = threading.Event()

    def send_again(results: list[Round], load: WorkerLoad) -> None:
        if not has_seen_ticks.is_set():
            worker.submit(caller, [Round("a")])
        answered.put(None)

    caller: Caller[Round] = Caller(send_again)
    worker.submit(caller, [Round("a")])
    answered.get(timeout=SOON_S)
    seen = len(ranks.calls)
    wait_until(lambda: len(ranks.calls) >= seen + 3)
    has_seen_ticks.set()


def test_a_worker_that_stops_lets_the_other_ranks_end_last_and_on_its_own_thread(
    worker: Worker, ranks: Ranks
) -> None:
    wait_until(lambda: bool(ranks.calls))
    worker.stop()
    assert ranks.calls.index("stop") == len(ranks.calls) - 1
    assert ranks.threads == {"device_0"}


async def test_a_rank_that_was_told_to_stop_is_heard_of_once_and_for_all(
    worker: Worker, ranks: Ranks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ranks.on_tick = iter([True, *([False] * 10**6)]).__next__
    await worker.until_asked_to_stop()
    assert caplog.messages == ["another rank was told to stop; so all do"]
    num_calls = len(ranks.calls)
    await until(lambda: len(ranks.calls) > num_calls)
    await worker.until_asked_to_stop()


async def test_a_rank_that_does_not_answer_a_call_ends_the_thread(
    worker: Worker, ranks: Ranks
) -> None:
    ranks.on_tick = fails(GroupBroken("rank 1 has ended"))
    assert await worker.until_broken() == "rank 1 has ended"


async def test_a_rank_that_is_lost_in_a_pass_ends_the_thread_and_fails_no_round(
    worker: Worker, stepper: Stepper
) -> None:
    stepper.fault = GroupBroken("rank 2 has ended")
    worker.submit(Caller(lambda results, load: None), [Round("a")])
    assert await worker.until_broken() == "rank 2 has ended"
