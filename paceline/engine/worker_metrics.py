"""What drafts and targets have in common to count: rounds, passes, sequences and KV.

Each instrument has the label `role`, so that one question serves both. The device thread is asked
for nothing: its plain numbers are read when they are fetched, and results are counted on the event
loop, on their way out.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from paceline.engine.device_worker import DeviceWorker
from paceline.engine.pass_counts import PassCounts
from paceline.metrics import PART_BUCKETS, Instruments, Values
from paceline.rounds import RoundError, RoundErrorReason, RoundTiming, WorkerInfo

REFUSALS = (RoundErrorReason.INVALID_ARGUMENT, RoundErrorReason.TOO_LONG)
OUTCOMES = ("answered", "resend", "refused", "failed", "superseded")

_ROUNDS = (
    "Rounds by what became of them: `answered`; `resend`, as the worker lacked tokens; `refused`, "
    "as no worker could run it; `failed`; `superseded` by another one before they got a pass."
)


class RoundResult(Protocol):
    """A result of either role."""

    @property
    def held(self) -> int | None:
        """Set when the round must be sent again."""

    @property
    def error(self) -> RoundError | None:
        """Set when it failed."""

    @property
    def timing(self) -> RoundTiming:
        """Where its time went."""


class WorkerMetrics:
    """The instruments of one worker."""

    def __init__(
        self, role: str, worker: DeviceWorker[Any, Any], passes: PassCounts, info: WorkerInfo
    ) -> None:
        self.instruments = Instruments()
        self._role = role
        self._worker = worker
        self._passes = passes
        self._outcomes = dict.fromkeys(OUTCOMES, 0)
        build = {"model": info.model, "drafter": info.drafter, "numerics": info.numerics[:12]}
        self.instruments.show_build(role, lambda: build)
        self._show_rounds()
        self._show_passes()
        self._show_room()
        self._queue_s = self._times("worker_queue_seconds", "Time that rounds waited for a pass.")
        self._compute_s = self._times("worker_compute_seconds", "Time that passes took for rounds.")

    def answered(self, results: Sequence[RoundResult]) -> None:
        """Count results that go out."""
        for result in results:
            if result.held is not None:
                self._outcomes["resend"] += 1
            elif result.error is not None:
                is_refused = result.error.reason in REFUSALS
                self._outcomes["refused" if is_refused else "failed"] += 1
            else:
                self._outcomes["answered"] += 1
                self._queue_s.observe(result.timing.queue_us / 1e6)
                self._compute_s.observe(result.timing.compute_us / 1e6)

    def _show_rounds(self) -> None:
        def outcomes() -> Values:
            self._outcomes["superseded"] = self._worker.num_superseded
            return {(self._role, name): number for name, number in self._outcomes.items()}

        self.instruments.shown_counter("worker_rounds", _ROUNDS, ("role", "outcome"), outcomes)
        self._gauge(
            "worker_rounds_waiting",
            "Rounds that wait for a pass.",
            lambda: self._worker.load.num_waiting,
        )
        self._gauge(
            "worker_sequences",
            "Sequences that the worker holds.",
            lambda: self._worker.load.num_sequences,
        )

    def _show_passes(self) -> None:
        passes = self._passes
        self._counter("worker_passes", "Passes of the device.", lambda: passes.num_passes)
        self._counter(
            "worker_pass_seconds",
            "Time that passes took; its rate is the share of the time that the device is busy.",
            lambda: passes.seconds,
        )
        self._counter(
            "worker_pass_sequences",
            "Sequences of passes, summed; by passes: how many one batch has.",
            lambda: passes.num_sequences,
        )

    def _show_room(self) -> None:
        def usage() -> float:
            load = self._worker.load
            return load.kv_used / load.kv_capacity if load.kv_capacity else 0.0

        self._gauge(
            "kv_cache_usage_perc",
            "Share of the room for KV that sequences hold, from 0 to 1; 0 where there is none.",
            usage,
        )
        self._gauge(
            "kv_cache_used_tokens",
            "Room for KV that sequences hold.",
            lambda: self._worker.load.kv_used,
        )
        self._gauge(
            "kv_cache_capacity_tokens",
            "Room for KV; 0 for a drafter that needs none.",
            lambda: self._worker.load.kv_capacity,
        )
        self._counter(
            "num_preemptions",
            "Sequences that lost their KV for another one and are computed again.",
            lambda: self._worker.load.num_preemptions,
        )

    def _counter(self, name: str, text: str, read: Callable[[], float]) -> None:
        self.instruments.shown_counter(name, text, ("role",), lambda: {(self._role,): read()})

    def _gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        self.instruments.shown_gauge(name, text, ("role",), lambda: {(self._role,): read()})

    def _times(self, name: str, text: str) -> Any:
        return self.instruments.histogram(name, text, PART_BUCKETS, "role").labels(self._role)
