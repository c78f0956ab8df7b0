"""The one thread that owns the device.

Servicers submit rounds and await results; the thread gathers what waits into one pass after the
other. Before a pass it waits a little, at most a share of a pass, for sequences of the previous
pass that are due back by their measured return time: without that, two sequences fall into
alternating passes of half the speed.

Knows nothing about what a round or a pass is: a `Stepper` (verifier, proposer) does. Where several
processes share the model, the others are called between passes, so that each soon knows of the end
of any; then this thread ends too.
"""

import asyncio
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Generic, TypeVar

from paceline.engine.lost_device import DeviceLost, what_lost_it
from paceline.engine.ranks.place import GroupBroken
from paceline.engine.stepper import OfSequence, Ranks, Stepper
from paceline.rounds import WorkerLoad

logger = logging.getLogger(__name__)

RoundT = TypeVar("RoundT", bound=OfSequence)
ResultT = TypeVar("ResultT", bound=OfSequence)

MAX_WAIT_SHARE = 0.25
"""Longest wait for returning sequences, as a share of the last pass."""
RETURN_TIME_STEP = 1.25
"""By how much a sequence's typical return time follows each measurement. Steps of one size lead to
the median, which the odd long wait on a busy machine does not move."""
STALL_S = 0.05
"""How long to sleep when nothing that waits can get a pass yet."""
STUCK_S = 120.0
"""A pass that takes longer will not end: the callers have left, who wait a minute for a result."""
IDLE_TICK_S = 5.0
"""How often other ranks are called, passes aside: several times before they give this one up."""
LOOK_S = 1.0
"""How often to look whether the pass that runs is still the same."""


@dataclass(eq=False, slots=True)
class Caller(Generic[ResultT]):
    """Who is told about results; `deliver` is called on the device thread."""

    deliver: Callable[[list[ResultT], WorkerLoad], None]


@dataclass(slots=True)
class _Submission(Generic[RoundT, ResultT]):
    caller: Caller[ResultT]
    rounds: Sequence[RoundT]
    closed_sequence_ids: Sequence[str]
    is_goodbye: bool = False
    arrived_at: float = field(default_factory=perf_counter)


@dataclass(slots=True)
class _Return:
    """When a sequence got its last result, and how long it typically takes to come back."""

    delivered_at: float
    typical_s: float | None = None


def device_thread(name: str) -> ThreadPoolExecutor:
    """The one thread of a worker, to load the model on and then to run it.

    Both on one thread: OpenMP makes a team of threads for each thread that computes, and with two
    teams there are more threads than cores, which makes it wait in a far slower way.
    """
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)


class DeviceWorker(Generic[RoundT, ResultT]):
    """Runs a stepper on a thread of its own."""

    def __init__(
        self,
        stepper: Stepper[RoundT, ResultT],
        thread: ThreadPoolExecutor,
        ranks: Ranks | None = None,
    ) -> None:
        self._stepper = stepper
        self._executor = thread
        self._ranks = ranks
        self._ticked_at = perf_counter()
        self._is_asked_to_stop = False
        self._inbox: deque[_Submission[RoundT, ResultT]] = deque()
        self._wake = threading.Condition()
        self._is_stopping = False
        self._running: Future[None] | None = None
        self._num_turns = 0
        self._is_resting = True
        self._callers: dict[str, Caller[ResultT]] = {}
        self._returns: dict[str, _Return] = {}
        self._last_pass: list[str] = []
        self._last_pass_s = 0.0
        self.load = stepper.load
        """The state of the worker as of what it did last; may be read from any thread."""
        self.num_superseded = 0
        """Rounds in whose place another one of their sequence came before they got a pass."""

    @property
    def is_idle(self) -> bool:
        """Whether it holds no sequence of any caller."""
        return not (self._inbox or self._callers)

    def start(self) -> None:
        """Begin to take rounds."""
        # Results reach the event loop sooner when the interpreter lock changes hands sooner.
        sys.setswitchinterval(0.0005)
        self._running = self._executor.submit(self._run)

    async def until_broken(self) -> str:
        """Return, with the reason, when the thread has ended unasked or does not come back.

        Counts looks and not seconds: a process that was stopped for a while is not at fault.
        """
        turn, num_looks = 0, 0
        while num_looks * LOOK_S < STUCK_S:
            await asyncio.sleep(LOOK_S)
            if self._running is not None and self._running.done() and not self._is_stopping:
                error = self._running.exception()
                if isinstance(error, GroupBroken):
                    return str(error)
                if isinstance(error, DeviceLost):
                    return f"its device is lost: {error}"
                return f"its thread has ended: {error!r}"
            is_same = turn == self._num_turns and not self._is_resting
            turn, num_looks = self._num_turns, num_looks + 1 if is_same else 0
        return f"a pass has not come to its end in {STUCK_S:g} s"

    async def until_asked_to_stop(self) -> None:
        """Return when another rank was told to stop, so that all have to."""
        while not self._is_asked_to_stop:  # noqa: ASYNC110  # the device thread tells nobody
            await asyncio.sleep(LOOK_S)
        logger.info("another rank was told to stop; so all do")

    def stop(self) -> None:
        """Finish the pass that runs, let other ranks end, and end the thread."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        self._executor.shutdown()

    def submit(
        self, caller: Caller[ResultT], rounds: Sequence[RoundT], closed: Sequence[str] = ()
    ) -> None:
        """Hand over rounds; results arrive through the caller. Returns at once."""
        self._post(_Submission(caller, rounds, closed))

    def leave(self, caller: Caller[ResultT]) -> None:
        """The caller is gone: its sequences end."""
        self._post(_Submission(caller, (), (), is_goodbye=True))

    def _post(self, submission: _Submission[RoundT, ResultT]) -> None:
        with self._wake:
            self._inbox.append(submission)
            self._wake.notify()

    def _run(self) -> None:
        while self._rest():
            self._tick()
            self._drain()
            self._await_returning()
            if self._stepper.has_work:
                self._pass()
        if self._ranks is not None:
            self._ranks.stop()

    def _rest(self) -> bool:
        """Wait until there is something to do; False: to stop."""
        with self._wake:
            self._is_resting = True
            if not (self._inbox or self._is_stopping or self._stepper.has_work):
                self._wake.wait(self._until_tick_s())
            self._num_turns += 1
            self._is_resting = False
            return not self._is_stopping

    def _until_tick_s(self) -> float | None:
        if self._ranks is None:
            return None
        return max(0.0, self._ticked_at + IDLE_TICK_S - perf_counter())

    def _tick(self) -> None:
        if self._ranks is not None and not self._until_tick_s():
            self._is_asked_to_stop = self._ranks.tick() or self._is_asked_to_stop
            self._ticked_at = perf_counter()

    def _drain(self) -> None:
        while self._inbox:
            submission = self._inbox.popleft()
            ended = list(submission.closed_sequence_ids)
            if submission.is_goodbye:
                ended = [id for id, c in self._callers.items() if c is submission.caller]
            for sequence_id in ended:
                self._close(sequence_id)
            if ended:
                self.load = self._stepper.load
            if ended and not submission.is_goodbye:
                # Nothing else may follow for long: an idle worker must not look busy.
                submission.caller.deliver([], self.load)
            try:
                answers = [self._accept(submission, round) for round in submission.rounds]
            except Exception as error:  # The thread must outlive what it was handed.
                answers = [*self._abandon(error)]
            self._deliver([answer for answer in answers if answer is not None])

    def _accept(self, submission: _Submission[RoundT, ResultT], round: RoundT) -> ResultT | None:
        self._callers[round.sequence_id] = submission.caller
        self.num_superseded += self._stepper.is_waiting(round.sequence_id)
        came_back = self._returns.get(round.sequence_id)
        if came_back is not None:
            # Not now, when a pass of others may have kept it waiting.
            took = submission.arrived_at - came_back.delivered_at
            if came_back.typical_s is None:
                came_back.typical_s = took
            elif took > came_back.typical_s:
                came_back.typical_s *= RETURN_TIME_STEP
            else:
                came_back.typical_s /= RETURN_TIME_STEP
        return self._stepper.accept(round, perf_counter() - submission.arrived_at)

    def _close(self, sequence_id: str) -> None:
        self._stepper.close(sequence_id)
        self._callers.pop(sequence_id, None)
        self._returns.pop(sequence_id, None)

    def _await_returning(self) -> None:
        """Wait for those of the last pass that will soon be back, if others wait already."""
        now = perf_counter()
        until = now
        for sequence_id in self._last_pass:
            expected = self._returns.get(sequence_id)
            if expected is None or expected.typical_s is None:
                continue
            due = expected.delivered_at + 1.5 * expected.typical_s
            latest = expected.delivered_at + MAX_WAIT_SHARE * self._last_pass_s
            if due <= latest and not self._stepper.is_waiting(sequence_id):
                until = max(until, due)
        while self._stepper.has_work and now < until and not self._all_back():
            with self._wake:
                if not self._inbox and not self._is_stopping:
                    self._wake.wait(until - now)
            self._drain()
            now = perf_counter()

    def _all_back(self) -> bool:
        return all(self._stepper.is_waiting(id) for id in self._last_pass if id in self._returns)

    def _pass(self) -> None:
        started = perf_counter()
        results: list[ResultT] | None
        try:
            results = self._stepper.step()
        except Exception as error:  # The thread must outlive a failed pass.
            results = self._abandon(error)
        if results is None:
            with self._wake:
                if not self._inbox and not self._is_stopping:
                    self._wake.wait(STALL_S)
            return
        now = perf_counter()
        self._last_pass = [result.sequence_id for result in results]
        self._last_pass_s = now - started
        for sequence_id in self._last_pass:
            self._returns.setdefault(sequence_id, _Return(now)).delivered_at = now
        self._deliver(results)

    def _abandon(self, error: Exception) -> list[ResultT]:
        if isinstance(error, GroupBroken):
            raise error
        logger.exception("a pass failed")
        if reason := what_lost_it():
            raise DeviceLost(reason) from error
        return self._stepper.abandon(f"the worker's pass failed: {error!r}")

    def _deliver(self, results: Sequence[ResultT]) -> None:
        by_caller: dict[Caller[ResultT], list[ResultT]] = {}
        for result in results:
            caller = self._callers.get(result.sequence_id)
            if caller is not None:
                by_caller.setdefault(caller, []).append(result)
        self.load = load = self._stepper.load
        for caller, share in by_caller.items():
            caller.deliver(share, load)
