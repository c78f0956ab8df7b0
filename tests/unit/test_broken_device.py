"""A device that computes no more ends its worker: nobody goes on waiting for it."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
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
    fault: Exception | None = None
    load: WorkerLoad = WorkerLoad()

    def accept(self, round: Round, waited_s: float) -> Round | None:
        self.waiting.append(round)
        return None

    def close(self, sequence_id: str) -> None:
        raise OSError("the device is lost")

    def step(self) -> list[Round]:
        assert self.may_step.wait(SOON_S)
        if self.fault is not None:
            raise self.fault
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


async def test_a_card_that_is_lost_in_a_pass_is_noticed(worker: Worker, stepper: Stepper) -> None:
    stepper.fault = torch.AcceleratorError("CUDA error: an illegal memory access")
    stepper.may_step.set()
    worker.submit(Caller(lambda results, load: None), [Round("a")])
    assert "its thread has ended: AcceleratorError('CUDA error" in await worker.until_broken()


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
