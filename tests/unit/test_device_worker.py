"""The device thread: who is answered, who is closed, what it survives, whom it waits for."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from queue import Queue

import pytest
from waiting import SOON_S

from paceline.engine import device_worker
from paceline.engine.device_worker import Caller, DeviceWorker, device_thread
from paceline.rounds import WorkerLoad

PATIENCE_S = SOON_S


@dataclass(frozen=True)
class Round:
    sequence_id: str
    number: int = 1


@dataclass(frozen=True)
class Result:
    sequence_id: str
    number: int
    failure: str = ""


@dataclass
class Stepper:
    """Answers all that waits, one pass at a time, as the test tells it to."""

    pass_s: float = 0.0
    num_stalls: int = 0
    waiting: dict[str, Round] = field(default_factory=dict)
    passes: list[set[str]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    waited_s: dict[str, float] = field(default_factory=dict)
    may_step: threading.Event = field(default_factory=threading.Event)
    is_stepping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_step.set()

    def accept(self, round: Round, waited_s: float) -> Result | None:
        self.waited_s[round.sequence_id] = waited_s
        if round.sequence_id == "refused":
            return Result("refused", round.number)
        if round.sequence_id == "poison":
            raise ZeroDivisionError("poison")
        self.waiting[round.sequence_id] = round
        return None

    def close(self, sequence_id: str) -> None:
        self.waiting.pop(sequence_id, None)
        self.closed.append(sequence_id)

    def step(self) -> list[Result] | None:
        self.is_stepping.set()
        assert self.may_step.wait(PATIENCE_S)
        time.sleep(self.pass_s)
        if self.num_stalls:
            self.num_stalls -= 1
            return None
        if "fatal" in self.waiting:
            raise ZeroDivisionError("fatal")
        self.passes.append(set(self.waiting))
        results = [Result(round.sequence_id, round.number) for round in self.waiting.values()]
        self.waiting.clear()
        return results

    def abandon(self, message: str) -> list[Result]:
        failed = [Result(r.sequence_id, r.number, message) for r in self.waiting.values()]
        self.waiting.clear()
        return failed

    def is_waiting(self, sequence_id: str) -> bool:
        return sequence_id in self.waiting

    @property
    def has_work(self) -> bool:
        return bool(self.waiting)

    @property
    def load(self) -> WorkerLoad:
        return WorkerLoad(num_waiting=len(self.waiting))


class Listener:
    """A caller that keeps what it hears."""

    def __init__(self) -> None:
        self._heard: Queue[Result] = Queue()
        self.caller: Caller[Result] = Caller(self._deliver)

    def _deliver(self, results: list[Result], load: WorkerLoad) -> None:
        for result in results:
            self._heard.put(result)

    def hear(self, count: int = 1) -> list[Result]:
        return [self._heard.get(timeout=PATIENCE_S) for _ in range(count)]

    def hears_nothing(self) -> bool:
        return self._heard.empty()


Worker = DeviceWorker[Round, Result]


@pytest.fixture
def stepper() -> Stepper:
    return Stepper()


@pytest.fixture
def worker(stepper: Stepper) -> Iterator[Worker]:
    worker = Worker(stepper, device_thread("device"))
    worker.start()
    yield worker
    stepper.may_step.set()
    worker.stop()


def held_up(worker: Worker, stepper: Stepper, listener: Listener) -> None:
    """Let the thread begin a pass, of the sequence "first", and not end it."""
    stepper.may_step.clear()
    worker.submit(listener.caller, [Round("first")])
    assert stepper.is_stepping.wait(PATIENCE_S)


def test_what_arrives_during_a_pass_shares_the_next_one(worker: Worker, stepper: Stepper) -> None:
    listener = Listener()
    held_up(worker, stepper, listener)
    for sequence_id in "abc":
        worker.submit(listener.caller, [Round(sequence_id)])
    submitted = time.perf_counter()
    time.sleep(0.01)
    waited_s = time.perf_counter() - submitted
    stepper.may_step.set()
    assert {result.sequence_id for result in listener.hear(4)} == {"first", "a", "b", "c"}
    assert stepper.passes == [{"first"}, {"a", "b", "c"}]
    assert min(stepper.waited_s[sequence_id] for sequence_id in "abc") >= waited_s


def test_each_caller_hears_of_its_own_sequences(worker: Worker, stepper: Stepper) -> None:
    mine, theirs = Listener(), Listener()
    held_up(worker, stepper, mine)
    worker.submit(mine.caller, [Round("a"), Round("b")])
    worker.submit(theirs.caller, [Round("c")])
    stepper.may_step.set()
    assert [result.sequence_id for result in mine.hear(3)] == ["first", "a", "b"]
    assert [result.sequence_id for result in theirs.hear()] == ["c"]
    assert mine.hears_nothing()


def test_an_answer_that_needs_no_pass_comes_at_once(worker: Worker, stepper: Stepper) -> None:
    listener = Listener()
    worker.submit(listener.caller, [Round("refused", 7)])
    assert listener.hear() == [Result("refused", 7)]
    assert stepper.passes == []


def test_only_the_newest_round_of_a_sequence_is_answered_to_whoever_sent_it(
    worker: Worker, stepper: Stepper
) -> None:
    old, new = Listener(), Listener()
    held_up(worker, stepper, old)
    worker.submit(old.caller, [Round("a", 1)])
    worker.submit(new.caller, [Round("a", 2)])
    stepper.may_step.set()
    assert new.hear() == [Result("a", 2)]
    assert old.hear() == [Result("first", 1)]
    assert old.hears_nothing()


def test_a_caller_that_leaves_takes_its_sequences_along(worker: Worker, stepper: Stepper) -> None:
    leaving, staying = Listener(), Listener()
    held_up(worker, stepper, staying)
    worker.submit(leaving.caller, [Round("a"), Round("b")])
    worker.submit(staying.caller, [Round("c")])
    worker.leave(leaving.caller)
    stepper.may_step.set()
    assert [result.sequence_id for result in staying.hear(2)] == ["first", "c"]
    assert sorted(stepper.closed) == ["a", "b"]
    assert stepper.passes == [{"first"}, {"c"}]
    assert leaving.hears_nothing()


def test_a_sequence_that_moved_to_another_stream_outlives_the_first(
    worker: Worker, stepper: Stepper
) -> None:
    broken, fresh = Listener(), Listener()
    held_up(worker, stepper, fresh)
    worker.submit(broken.caller, [Round("a", 1)])
    worker.submit(fresh.caller, [Round("a", 2)])
    worker.leave(broken.caller)
    stepper.may_step.set()
    assert fresh.hear(2)[1] == Result("a", 2)
    assert stepper.closed == []


def test_a_sequence_that_ends_during_a_pass_is_not_answered(
    worker: Worker, stepper: Stepper
) -> None:
    listener = Listener()
    held_up(worker, stepper, listener)
    worker.submit(listener.caller, [Round("a")])
    worker.submit(listener.caller, [Round("b")], closed=["a"])
    stepper.may_step.set()
    assert [result.sequence_id for result in listener.hear(2)] == ["first", "b"]
    assert stepper.closed == ["a"]


def test_a_sequence_can_end_and_begin_again_in_one_message(
    worker: Worker, stepper: Stepper
) -> None:
    listener = Listener()
    worker.submit(listener.caller, [Round("a", 1)])
    listener.hear()
    worker.submit(listener.caller, [Round("a", 2)], closed=["a"])
    assert listener.hear() == [Result("a", 2)]


@pytest.mark.parametrize("culprit", ["fatal", "poison"])
def test_a_failure_is_told_to_all_that_wait_and_the_thread_lives_on(
    culprit: str, worker: Worker, stepper: Stepper, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener()
    held_up(worker, stepper, listener)
    worker.submit(listener.caller, [Round("a"), Round(culprit)])
    stepper.may_step.set()
    _, failed = listener.hear(2)
    assert failed.sequence_id == "a"
    assert f"ZeroDivisionError('{culprit}')" in failed.failure
    assert "Traceback" in caplog.text
    worker.submit(listener.caller, [Round("b")])
    assert listener.hear(2 if culprit == "fatal" else 1)[-1] == Result("b", 1)


def test_a_pass_that_finds_nothing_to_run_is_tried_again(worker: Worker, stepper: Stepper) -> None:
    stepper.num_stalls = 2
    listener = Listener()
    worker.submit(listener.caller, [Round("a")])
    assert listener.hear() == [Result("a", 1)]


def test_stopping_ends_the_thread_with_the_pass_that_runs(stepper: Stepper) -> None:
    worker = Worker(stepper, device_thread("short-lived"))
    worker.start()
    listener = Listener()
    worker.submit(listener.caller, [Round("a")])
    listener.hear()
    worker.stop()
    names = [thread.name for thread in threading.enumerate()]
    assert not any(name.startswith("short-lived") for name in names)


class Returning:
    """A caller whose sequence comes back some time after each result."""

    def __init__(self, worker: Worker, sequence_id: str, num_rounds: int, delay_s: float) -> None:
        self._worker = worker
        self._round = Round(sequence_id)
        self._delay_s = delay_s
        self._num_left = num_rounds
        self._caller: Caller[Result] = Caller(lambda results, load: self._come_back())
        self.is_done = threading.Event()

    def send(self) -> None:
        self._worker.submit(self._caller, [self._round])

    def _come_back(self) -> None:
        self._num_left -= 1
        if self._num_left:
            threading.Timer(self._delay_s, self.send).start()
        else:
            self.is_done.set()


@pytest.mark.parametrize("share", [device_worker.MAX_WAIT_SHARE, 0.0], ids=["waiting", "not"])
def test_sequences_that_alternate_fall_into_step_by_waiting(
    share: float, worker: Worker, stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_worker, "MAX_WAIT_SHARE", share)
    stepper.pass_s = 0.08
    for ids in ("ab", "cd", "ef", "gh"):  # a machine with other work may be late at any moment
        first, second = (Returning(worker, id, num_rounds=12, delay_s=0.004) for id in ids)
        stepper.is_stepping.clear()
        first.send()
        assert stepper.is_stepping.wait(PATIENCE_S)
        second.send()
        assert first.is_done.wait(PATIENCE_S) and second.is_done.wait(PATIENCE_S)
        num_shared = sum(sorted(in_pass) == list(ids) for in_pass in stepper.passes)
        if num_shared >= 6 if share else num_shared <= 3:
            return
    pytest.fail(f"passes that the last two shared, of 12 each: {num_shared}")
