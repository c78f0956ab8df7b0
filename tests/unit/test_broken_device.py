"""A device that computes no more ends its worker: nobody goes on waiting for it."""

import asyncio
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest
from waiting import SOON_S, until

from paceline.engine import device_worker
from paceline.engine.device_worker import Caller, DeviceWorker, device_thread
from paceline.rounds import WorkerLoad
from paceline.server import DEVICE_BROKEN


@dataclass(frozen=True)
class Round:
    sequence_id: str


@dataclass
class Stepper:
    """Answers one round with itself, when it may."""

    waiting: list[Round] = field(default_factory=list)
    may_step: threading.Event = field(default_factory=threading.Event)
    load: WorkerLoad = WorkerLoad()

    def accept(self, round: Round, waited_s: float) -> Round | None:
        self.waiting.append(round)
        return None

    def close(self, sequence_id: str) -> None:
        raise OSError("the device is lost")

    def step(self) -> list[Round]:
        assert self.may_step.wait(SOON_S)
        results, self.waiting = self.waiting, []
        return results

    def abandon(self, message: str) -> list[Round]:
        raise AssertionError(message)

    def is_waiting(self, sequence_id: str) -> bool:
        return bool(self.waiting)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting)


Worker = DeviceWorker[Round, Round]


@pytest.fixture
def stepper() -> Stepper:
    return Stepper()


@pytest.fixture
def worker(stepper: Stepper, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr(device_worker, "LOOK_S", 0.01)
    monkeypatch.setattr(device_worker, "STUCK_S", 0.1)
    worker = Worker(stepper, device_thread("device"))
    worker.start()
    yield worker
    stepper.may_step.set()
    worker.stop()


async def test_a_pass_that_does_not_end_is_noticed(worker: Worker) -> None:
    worker.submit(Caller(lambda results, load: None), [Round("a")])
    assert await worker.until_broken() == "a pass has not come to its end in 0.1 s"


async def test_a_thread_that_ends_unasked_is_noticed(worker: Worker) -> None:
    worker.submit(Caller(lambda results, load: None), (), ["a"])
    assert await worker.until_broken() == "its thread has ended: OSError('the device is lost')"


@dataclass
class FailingStepper(Stepper):
    """Its passes fail."""

    def step(self) -> list[Round]:
        raise RuntimeError("CUDA error")

    def abandon(self, message: str) -> list[Round]:
        failed, self.waiting = self.waiting, []
        return failed


async def outcome_of_a_failed_pass(synchronize: Callable[[], None]) -> str:
    """What becomes of a worker whose pass fails on a device that does so when it is asked."""
    torch = types.SimpleNamespace(is_initialized=lambda: True, synchronize=synchronize)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_worker, "LOOK_S", 0.01)
        patch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=torch))
        worker = Worker(FailingStepper(), device_thread("device"))
        worker.start()
        answered = asyncio.Event()
        tell = partial(asyncio.get_running_loop().call_soon_threadsafe, answered.set)
        worker.submit(Caller(lambda results, load: tell()), [Round("a")])
        broken, going_on = [
            asyncio.ensure_future(w) for w in (worker.until_broken(), answered.wait())
        ]
        await asyncio.wait({broken, going_on}, return_when=asyncio.FIRST_COMPLETED, timeout=SOON_S)
        worker.stop()
        broken.cancel()
        return broken.result() if broken.done() else "goes on"


async def test_a_worker_ends_with_a_device_whose_error_stays() -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access\nCompile with TORCH_USE_CUDA_DSA")

    found = await outcome_of_a_failed_pass(fail)
    assert found == "its device is lost: CUDA error: an illegal memory access"


async def test_a_worker_goes_on_after_a_failed_pass_of_a_device_that_computes() -> None:
    assert await outcome_of_a_failed_pass(lambda: None) == "goes on"


async def test_a_worker_that_rests_is_not_broken(worker: Worker, stepper: Stepper) -> None:
    stepper.may_step.set()
    answered = threading.Event()
    worker.submit(Caller(lambda results, load: answered.set()), [Round("a")])
    assert answered.wait(SOON_S)
    await until(lambda: worker._is_resting)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(worker.until_broken(), 3 * device_worker.STUCK_S)


BROKEN_WORKER = """
import asyncio, types
from paceline.server import GrpcServer, serve_worker

class Device:
    def start(self): pass
    async def until_broken(self): return "it is lost"

async def drain(timeout_s): raise AssertionError("nobody has told it to stop")

async def main():
    server = GrpcServer("a.Service", lambda server: None)
    settings = types.SimpleNamespace(host="127.0.0.1", port=0, drain_seconds=0)
    await serve_worker("the worker", server, Device(), drain, settings)

asyncio.run(main())
"""


def test_the_process_of_a_broken_device_ends_and_says_why() -> None:
    argv = [sys.executable, "-c", BROKEN_WORKER]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=SOON_S)
    assert ended.returncode == DEVICE_BROKEN, ended.stderr
    assert ended.stderr.splitlines()[-1] == (
        "the worker ends, since it computes no more: it is lost"
    )
