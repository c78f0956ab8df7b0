"""Faults between the decode loop and real workers, without a network.

A `FaultyDevice` is a worker: a real verifier or proposer, fed and drained as the device thread
does it. A `FaultyConnection` to it is a real `RoundClient` on a stream of its own. Every batch of
answers takes the next fault of the device's list; with none left, all goes well.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from enum import Enum
from typing import Any

from coordinator.sequence import DraftWorker, TargetWorker
from draft_service.proposer import Proposal
from paceline.engine.sequences import SequenceTable
from paceline.engine.stepper import Stepper
from paceline.rounds import Drafts, WorkerLoad
from paceline.workers.round_client import RoundClient, WorkerLost

PASS_S = 0.01
LATE_S = 0.5
VERY_LATE_S = 100.0
RECONNECT_S = 0.1


class Fault(Enum):
    """What happens to some answers."""

    NONE = "none"
    LOST = "lost"
    DOUBLED = "doubled"
    LATE = "late"
    VERY_LATE = "after everyone has given up"
    WIPED = "delivered, then the worker forgets everything"
    FAILED = "the pass fails"
    BROKEN = "the stream ends instead"


class FaultyDevice:
    """A worker whose answers go wrong."""

    def __init__(
        self, make_stepper: Callable[[], Stepper[Any, Any]], faults: Iterable[Fault] = ()
    ) -> None:
        self._make_stepper = make_stepper
        self._faults = deque(faults)
        self._inbox: asyncio.Queue[tuple[_Stream, Any]] = asyncio.Queue()
        self._owners: dict[str, _Stream] = {}
        self.stepper = make_stepper()
        self.wants_features = False
        self.num_rounds = 0
        self.num_resends = 0
        self._task = asyncio.create_task(self._run())

    def submit(self, stream: "_Stream", message: Any) -> None:
        """A message has arrived on a stream."""
        self._inbox.put_nowait((stream, message))

    async def _run(self) -> None:
        while True:
            self._handle(*await self._inbox.get())
            while self._inbox.empty() and self.stepper.has_work:
                self._pass()
                await asyncio.sleep(PASS_S)

    def _pass(self) -> None:
        """One pass; what goes wrong with it is drawn when it has something to say."""
        fault = self._faults[0] if self._faults else Fault.NONE
        try:
            if fault is Fault.FAILED:
                raise ZeroDivisionError("injected")
            results = self.stepper.step() or []
        except Exception as error:  # as the device thread does it
            results, fault = self.stepper.abandon(repr(error)), Fault.NONE
        if not results:
            return
        self._next_fault()
        self._send(results, fault)

    def _next_fault(self) -> Fault:
        return self._faults.popleft() if self._faults else Fault.NONE

    def _handle(self, stream: "_Stream", message: Any) -> None:
        rounds, closed = message
        for sequence_id in closed:
            self.stepper.close(sequence_id)
            self._owners.pop(sequence_id, None)
        for round in rounds:
            self.num_rounds += 1
            self._owners[round.sequence_id] = stream
            answer = self.stepper.accept(round)
            if answer is not None:
                self.num_resends += answer.held is not None
                self._send([answer], self._next_fault())

    def _send(self, results: list[Any], fault: Fault) -> None:
        for result in results:
            stream = self._owners.get(result.sequence_id)
            if stream is None or fault is Fault.LOST:
                continue
            if fault is Fault.BROKEN:
                stream.break_off()
            elif fault in (Fault.LATE, Fault.VERY_LATE):
                delay_s = LATE_S if fault is Fault.LATE else VERY_LATE_S
                asyncio.get_running_loop().call_later(delay_s, stream.deliver, result)
            else:
                for _ in range(2 if fault is Fault.DOUBLED else 1):
                    stream.deliver(result)
        if fault is Fault.WIPED:
            self.stepper = self._make_stepper()
        if fault is Fault.BROKEN:
            for sequence_id in [id for id, s in self._owners.items() if s.is_broken]:
                self.stepper.close(sequence_id)
                del self._owners[sequence_id]


class _Stream:
    """What a `RoundClient` needs of a gRPC call."""

    def __init__(self, device: FaultyDevice) -> None:
        self._device = device
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self.is_broken = False

    def deliver(self, result: Any) -> None:
        self._answers.put_nowait(([result], WorkerLoad()))

    def break_off(self) -> None:
        self.is_broken = True
        self._answers.put_nowait(None)

    async def write(self, message: Any) -> None:
        self._device.submit(self, message)

    def cancel(self) -> None:
        self.is_broken = True

    def __aiter__(self) -> "_Stream":
        return self

    async def __anext__(self) -> Any:
        answer = await self._answers.get()
        if answer is None:
            raise StopAsyncIteration
        return answer


class FaultyConnection:
    """A worker as a decode loop sees it: connects again after its stream broke."""

    def __init__(self, device: FaultyDevice) -> None:
        self._device = device
        self._client: RoundClient[Any, Any] | None = None
        self._is_connected = asyncio.Event()
        self._task = asyncio.create_task(self._stay_connected())

    @property
    def address(self) -> str:
        return "nowhere"

    @property
    def drafter(self) -> str:
        return "faulty"

    @property
    def wants_features(self) -> bool:
        return self._device.wants_features

    def results(self, round: Any, /) -> AsyncGenerator[Any, None]:
        if self._client is None:
            raise WorkerLost("not connected")
        return self._client.results(round)

    def close_sequence(self, sequence_id: str) -> None:
        if self._client is not None:
            self._client.close_sequence(sequence_id)

    async def until_connected(self) -> "FaultyConnection":
        await self._is_connected.wait()
        return self

    async def _stay_connected(self) -> None:
        while True:
            stream: Any = _Stream(self._device)
            self._client = RoundClient(stream, _same, _same, lambda *message: message, _same)
            self._is_connected.set()
            try:
                await self._client.run(lambda: None)
            except WorkerLost:
                self._client = None
                self._is_connected.clear()
            await asyncio.sleep(RECONNECT_S)


def _same(message: Any) -> Any:
    return message


class FixedWorkers:
    """The workers of a sequence: a lost one is followed by the next in the list."""

    def __init__(
        self, targets: list[FaultyConnection], drafts: list[FaultyConnection] | None = None
    ) -> None:
        self._targets = targets
        self._drafts = drafts or []

    async def target(self, lost: TargetWorker | None) -> FaultyConnection:
        return await _next_after(lost, self._targets).until_connected()

    def draft(self, lost: DraftWorker | None) -> FaultyConnection | None:
        return _next_after(lost, self._drafts) if self._drafts else None


def _next_after(lost: object, workers: list[FaultyConnection]) -> FaultyConnection:
    index = workers.index(lost) + 1 if isinstance(lost, FaultyConnection) else 0
    return workers[index % len(workers)]


class ScriptedDrafter:
    """Proposes what a script says, one entry a proposal, whatever was asked for; then nothing."""

    def __init__(self, script: Iterable[Callable[[Proposal], list[int] | Drafts]]) -> None:
        self._script = iter(script)
        self._table = SequenceTable()

    @property
    def table(self) -> SequenceTable:
        return self._table

    def load(self, num_waiting: int) -> WorkerLoad:
        return WorkerLoad(num_sequences=len(self._table), num_waiting=num_waiting)

    def extend(self, proposals: list[Proposal]) -> None:
        for proposal in proposals:
            entry = next(self._script, None)
            said = entry(proposal) if entry else []
            drafts = said if isinstance(said, Drafts) else Drafts(said)
            proposal.token_ids.extend(drafts.token_ids)
            proposal.parents.extend(drafts.parents)
            proposal.is_done = True
