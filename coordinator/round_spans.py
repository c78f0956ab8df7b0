"""Spans of the rounds of one choice, for requests that are recorded.

Stands where the decode loop has its workers and its speculation, hands everything on, and notes
what goes by: the loop knows nothing of it, and a request that is not recorded runs without it.
Rounds behind the first `MAX_ROUND_SPANS` of a request share one span, whose counts are their sums,
and send no context to workers.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from time import time_ns
from typing import Any

from coordinator.decode_loop import Committed, RoundPlan, Speculation
from coordinator.request_spans import RequestSpans
from coordinator.round_facts import RoundFacts
from coordinator.router import PlacedWorkers
from coordinator.sequence import DraftWorker, Sequence, TargetWorker
from paceline.rounds import Drafts, ProposeResult, ProposeRound, VerifyResult, VerifyRound
from paceline.telemetry.names import (
    DRAFT_FAILED,
    FURTHER_ROUNDS,
    NUMERICS_CHANGED,
    PREEMPTION,
    PREFILL,
    PROPOSE,
    RESEND,
    ROUND,
    VERIFY,
    WORKER_LOST,
)
from paceline.telemetry.span import Attributes, Span
from paceline.workers.round_client import RoundBytes
from paceline.workers.worker import Worker


class ChoiceSpans:
    """Looks on at the rounds of one choice, as the loop's workers and as its speculation."""

    def __init__(
        self,
        request: RequestSpans,
        choice: int,
        workers: PlacedWorkers,
        speculation: Speculation,
    ) -> None:
        self.request = request
        self.span = request.span
        """That of the round that runs; of the request before the first one."""
        self.facts = RoundFacts()
        """Of the round that runs."""
        self.is_recorded = True
        """Whether the round that runs has a span of its own."""
        self._choice = choice
        self._workers = workers
        self._speculation = speculation
        self._num_rounds = 0
        self._observed: dict[Worker, _ObservedWorker] = {}

    def plan(self, sequence: Sequence) -> RoundPlan:
        """The next round begins."""
        index, self._num_rounds = self._num_rounds, self._num_rounds + 1
        if self.request.takes_round():
            self._end_round()
            self._begin_round(PREFILL if index == 0 else ROUND, index, sequence)
        elif self.is_recorded:
            self._end_round()
            self._begin_round(FURTHER_ROUNDS, index, sequence)
            self.is_recorded = False
        plan = self._speculation.plan(sequence)
        self.facts.planned(plan)
        return plan

    def choose(self, sequence: Sequence, drafts: Drafts) -> Drafts:
        """Which drafts are verified is not looked into."""
        return self._speculation.choose(sequence, drafts)

    def observe(self, sequence: Sequence, committed: Committed) -> None:
        """A pass of the target has come back."""
        self._speculation.observe(sequence, committed)
        self.facts.committed(committed)
        if committed.propose is not None and committed.propose.failure:
            self.span.event(DRAFT_FAILED, {"error.type": committed.propose.failure})

    async def target(self, lost: TargetWorker | None) -> "_ObservedWorker":
        """A target."""
        if (gone := _inner(lost)) is not None:
            self.span.event(WORKER_LOST, _server(gone))
        was_changed = self._workers.numerics_changed
        worker = await self._workers.target(_inner(lost))
        if self._workers.numerics_changed and not was_changed:
            self.span.event(NUMERICS_CHANGED)
        self.facts.target = worker.address
        return self._observe(worker)

    def draft(self, lost: DraftWorker | None) -> "_ObservedWorker | None":
        """A draft, if there is one."""
        worker = self._workers.draft(_inner(lost))
        self.facts.draft = worker.address if worker else ""
        return self._observe(worker) if worker else None

    @property
    def is_prefill(self) -> bool:
        """Whether the round that runs is the first one."""
        return self._num_rounds == 1

    def close(self) -> None:
        """There are no more rounds."""
        self._end_round()

    def _begin_round(self, name: str, index: int, sequence: Sequence) -> None:
        attributes: Attributes = {
            "paceline.round.index": index,
            "paceline.choice.index": self._choice,
            "paceline.sequence.id": sequence.sequence_id,
            "paceline.sequence.position": len(sequence.log),
        }
        self.span = self.request.span.child(name, attributes=attributes)
        self.facts = RoundFacts(target=self.facts.target, draft=self.facts.draft)
        if name != PREFILL:
            return
        if self.request.first_prefill is None:
            self.request.first_prefill = self.span
        else:
            self.span.link(self.request.first_prefill)  # whose KV it finds

    def _end_round(self) -> None:
        if self.span is not self.request.span:
            self.span.set(self.facts.attributes(has_bytes=self.is_recorded))
            self.span.end(self.facts.ended_ns or time_ns())

    def _observe(self, worker: Worker) -> "_ObservedWorker":
        return self._observed.setdefault(worker, _ObservedWorker(worker, self))


class _ObservedWorker:
    """A worker as one choice has it."""

    def __init__(self, worker: Worker, spans: ChoiceSpans) -> None:
        self.worker = worker
        self._spans = spans
        self._warm_up: Span | None = None
        self._was_asked = False

    @property
    def address(self) -> str:
        """Where it is."""
        return self.worker.address

    @property
    def drafter(self) -> str:
        """Its method; empty where it is not known."""
        return self.worker.drafter

    @property
    def wants_features(self) -> bool:
        """Whether it is a draft that is fed with the target's hidden states."""
        return self.worker.wants_features

    def close_sequence(self, sequence_id: str) -> None:
        """The sequence has ended."""
        self.worker.close_sequence(sequence_id)

    def results(self, round: Any) -> AsyncGenerator[Any, None]:
        """Send a round and yield its results."""
        if not self._spans.is_recorded:
            return self.worker.results(round)
        return self._recorded(round)

    async def _recorded(
        self, round: ProposeRound | VerifyRound
    ) -> AsyncGenerator[ProposeResult | VerifyResult, None]:
        method = PROPOSE if isinstance(round, ProposeRound) else VERIFY
        attributes = {"rpc.system.name": "grpc", "rpc.method": method, **_server(self.worker)}
        parent = self._spans.span
        span = parent.child(method, "client", attributes)
        if isinstance(round, ProposeRound):
            self._link_to_warm_up(span)
        sent = replace(round, traceparent=span.traceparent, tracestate=span.tracestate)
        counted = RoundBytes()
        num_expected = len(round.span.token_ids)
        try:
            async with aclosing(self.worker.results(sent, counted)) as results:
                async for result in results:
                    self._note(round, result, span, num_expected)
                    num_expected = 0
                    yield result
        except Exception as error:
            span.fail(type(error).__name__)
            raise
        finally:
            span.set(
                {
                    "paceline.sent_bytes": counted.sent,
                    "paceline.received_bytes": counted.received,
                }
            )
            span.end()
            self._spans.facts.count_bytes(counted.sent, counted.received)

    def _link_to_warm_up(self, span: Span) -> None:
        """The first proposal is made beside a verification, and the second one waits for it."""
        if self._warm_up is not None:
            span.link(self._warm_up)
            self._warm_up = None
        elif not self._was_asked and not self.worker.wants_features:
            self._warm_up = span
        self._was_asked = True

    def _note(
        self,
        round: ProposeRound | VerifyRound,
        result: ProposeResult | VerifyResult,
        span: Span,
        num_expected: int,
    ) -> None:
        """`num_expected`: tokens that were sent and not answered yet, drafts left out."""
        if result.error is not None:
            span.fail(result.error.reason.name)
        if result.held is not None:
            role = "draft" if isinstance(round, ProposeRound) else "target"
            span.event(RESEND, {"paceline.worker.role": role, "paceline.held": result.held})
        if not isinstance(result, VerifyResult) or not isinstance(round, VerifyRound):
            return
        num_rows = result.timing.num_rows
        if not num_rows or round.score_from is not None:
            return
        if num_expected and self._spans.is_prefill:
            self._spans.request.num_cached_tokens += max(0, num_expected - num_rows)
        # One more is always left to run: the newest token, whose row says what comes next.
        num_again = num_rows - 1 - num_expected - result.num_draft_tokens
        if round.span.start and num_again > 0:
            span.event(PREEMPTION, {"paceline.recomputed_tokens": num_again})


def _inner(worker: TargetWorker | DraftWorker | None) -> Worker | None:
    return worker.worker if isinstance(worker, _ObservedWorker) else None


def _server(worker: Worker) -> Attributes:
    host, _, port = worker.address.rpartition(":")
    if not port.isdigit():
        return {"server.address": worker.address}
    return {"server.address": host, "server.port": int(port)}
