"""A worker's spans of one stream of rounds: what each traced round waited, and what it computed.

Made on the event loop out of the messages that come and go, with the times that the device's thread
measured anyway; nothing runs on that thread for it, and nothing at all for rounds that carry no
context. Every span that begins here ends here, also of a round that is never answered. A round that
fails is logged, traced or not.
"""

import logging
from collections.abc import Callable, Sequence
from time import time_ns
from typing import Generic, Protocol, TypeVar

from paceline.rounds import RoundError, RoundErrorReason, RoundTiming, WorkerLoad
from paceline.telemetry.names import RESEND, WORKER_COMPUTE, WORKER_QUEUE
from paceline.telemetry.span import Span
from paceline.telemetry.tracer import Tracer

logger = logging.getLogger(__name__)

_CALLERS_FAULTS = (RoundErrorReason.INVALID_ARGUMENT, RoundErrorReason.TOO_LONG)


class TracedRound(Protocol):
    """A round as it comes in."""

    @property
    def sequence_id(self) -> str: ...
    @property
    def round(self) -> int: ...
    @property
    def traceparent(self) -> str: ...
    @property
    def tracestate(self) -> str: ...


class TracedResult(Protocol):
    """One result of a round; not every one is the last."""

    @property
    def sequence_id(self) -> str: ...
    @property
    def round(self) -> int: ...
    @property
    def timing(self) -> RoundTiming: ...
    @property
    def error(self) -> RoundError | None: ...
    @property
    def held(self) -> int | None: ...
    @property
    def last(self) -> bool: ...


RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
RoundT = TypeVar("RoundT", bound=TracedRound)
ResultT = TypeVar("ResultT", bound=TracedResult)


class _Open:
    """A round that has not been answered to its end yet."""

    def __init__(self, round: int, span: Span) -> None:
        self.round = round
        self.span = span
        self.began_ns: int | None = None
        """When its first pass did."""
        self.num_passes = 0
        self.compute_us = 0


class RoundSpans(Generic[RequestT, ResponseT, RoundT, ResultT]):
    """Looks on while a stream's messages are read and written."""

    def __init__(
        self,
        tracer: Tracer,
        method: str,
        read: Callable[[RequestT], tuple[Sequence[RoundT], Sequence[str]]],
        write: Callable[[Sequence[ResultT], WorkerLoad], ResponseT],
    ) -> None:
        """`read` and `write` are what the stream would do without spans."""
        self._tracer = tracer
        self._method = method
        self._read = read
        self._write = write
        self._open: dict[str, _Open] = {}

    def read(self, request: RequestT) -> tuple[Sequence[RoundT], Sequence[str]]:
        """Begin the spans of what has come."""
        rounds, closed = self._read(request)
        for sequence_id in closed if self._open else ():
            self._give_up(sequence_id)
        for round in rounds:
            if round.traceparent:
                self._begin(round)
        return rounds, closed

    def write(self, results: Sequence[ResultT], load: WorkerLoad) -> ResponseT:
        """End the spans of what is answered."""
        for result in results:
            answered = self._open.get(result.sequence_id)
            if result.error is not None:
                _log_failure(result, answered)
            if answered is not None and answered.round == result.round:
                self._note(answered, result, load)
        return self._write(results, load)

    def close(self) -> None:
        """The stream has ended."""
        for sequence_id in [*self._open]:
            self._give_up(sequence_id)

    def _begin(self, round: RoundT) -> None:
        self._give_up(round.sequence_id)
        attributes = {
            "rpc.system.name": "grpc",
            "rpc.method": self._method,
            "paceline.sequence.id": round.sequence_id,
        }
        span = self._tracer.serve_round(
            self._method, round.traceparent, round.tracestate, attributes
        )
        if span is not None:
            self._open[round.sequence_id] = _Open(round.round, span)

    def _give_up(self, sequence_id: str) -> None:
        """A newer round has come, or the sequence has ended."""
        given_up = self._open.pop(sequence_id, None)
        if given_up is not None:
            given_up.span.set({"paceline.superseded": True})
            given_up.span.end()

    def _note(self, answered: _Open, result: ResultT, load: WorkerLoad) -> None:
        span, timing, now = answered.span, result.timing, time_ns()
        if timing.compute_us:
            answered.num_passes += 1
            answered.compute_us += timing.compute_us
            if answered.began_ns is None:
                answered.began_ns = max(span.started_ns, now - 1000 * timing.compute_us)
        if not result.last:
            return
        del self._open[result.sequence_id]
        if answered.began_ns is not None:
            span.child(WORKER_QUEUE, started_ns=span.started_ns).end(answered.began_ns)
            attributes = {
                "paceline.round.passes": answered.num_passes,
                "paceline.compute_ms": answered.compute_us / 1000,
                "paceline.pass.rows": timing.pass_rows,
                "paceline.pass.sequences": timing.pass_sequences,
                "paceline.pass.steps": timing.num_steps,
            }
            span.child(WORKER_COMPUTE, attributes=attributes, started_ns=answered.began_ns).end(now)
        if result.error is not None:
            span.fail(result.error.reason.name, result.error.reason not in _CALLERS_FAULTS)
        if result.held is not None:
            span.event(RESEND, {"paceline.held": result.held})
        span.set(
            {
                "paceline.worker.waiting": load.num_waiting,
                "paceline.worker.kv_used": load.kv_used,
                "paceline.worker.kv_capacity": load.kv_capacity,
            }
        )
        span.end(now)


def _log_failure(result: TracedResult, answered: _Open | None) -> None:
    """Which sequence's round, and not what was wrong with it: that may tell what was in it."""
    assert result.error is not None
    extra: dict[str, str | int] = {"sequence_id": result.sequence_id, "round": result.round}
    if answered is not None:
        extra |= {"trace_id": answered.span.trace_id, "span_id": answered.span.span_id}
    logger.info("a round failed: %s", result.error.reason.name, extra=extra)
