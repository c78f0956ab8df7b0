"""One request from admission to its last token.

Ties the parts together: tokenizer, router, the rounds of `decode_loop`, text and stops, the record
of the session, metrics. Front ends (HTTP, gRPC) call `prepare`, then iterate `stream`.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from coordinator.admission import (
    Admitted,
    Limits,
    check_speculation,
    check_values,
    encode_prompt,
    sequence_settings,
    token_limit,
    with_rule,
)
from coordinator.decode_loop import Committed, decode
from coordinator.metrics import Metrics
from coordinator.progress import Progress
from coordinator.records import Placement, SessionStore
from coordinator.requests import (
    FinishReason,
    Generation,
    GenerationRequest,
    GenerationStep,
    ServiceStatus,
    SpeculativeStats,
)
from coordinator.router import PlacedWorkers, Router
from coordinator.sequence import RoundRefused, Sequence
from coordinator.speculation_policies import SpeculationPolicies
from coordinator.status import unready_reason, worker_statuses
from coordinator.text_stream import TextStream
from coordinator.tokenizer import Tokenizer
from paceline.errors import InvalidRequest, NotFound, Overloaded, Unavailable
from paceline.rounds import TokenLog, WorkerInfo
from paceline.workers import WorkerLost
from paceline.workers.pool import WorkerPool
from paceline.workers.worker import fetch_tokenizer

logger = logging.getLogger(__name__)

TOKENIZER_RETRY_S = 0.5


class Generator:
    """Answers requests with the workers of a pool."""

    def __init__(
        self, pool: WorkerPool, store: SessionStore, metrics: Metrics, limits: Limits
    ) -> None:
        self._pool = pool
        self._router = Router(pool)
        self._store = store
        self._metrics = metrics
        self._limits = limits
        self._tokenizer: Tokenizer | None = None
        self._policies = SpeculationPolicies(pool, limits.num_speculative_tokens)
        self._slots = asyncio.Semaphore(limits.max_running_requests)
        self._num_present = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_draining = False
        self._stats = SpeculativeStats()

    @property
    def model_name(self) -> str:
        """The name of the served model; empty until a target has answered."""
        return self._pool.model.model if self._pool.model else ""

    async def load_tokenizer(self) -> None:
        """Fetch the tokenizer from the first target that has one; returns when that is done."""
        while self._tokenizer is None:
            for worker in self._pool.ready_targets():
                try:
                    files = await fetch_tokenizer(worker.address)
                except WorkerLost as error:
                    logger.warning("no tokenizer from %s: %s", worker.address, error)
                    continue
                self._tokenizer = await asyncio.to_thread(Tokenizer, files)
                return
            await asyncio.sleep(TOKENIZER_RETRY_S)

    async def prepare(self, request: GenerationRequest) -> Generation:
        """Admit a request: tokenize it, check that it fits, begin its record.

        Raises `InvalidRequest`, `Overloaded` or `Unavailable`.
        """
        tokenizer, model = self._must_be_ready()
        self._must_have_room()
        request = with_rule(request, self._limits.acceptance_rule)
        drafters = {w.info.drafter if w.info else None for w in self._pool.drafts}
        check_values(request, tokenizer.vocab_size)
        check_speculation(request.speculation, drafters)
        prompt_token_ids = await encode_prompt(tokenizer, request)
        generation = Admitted(
            request=request,
            prompt_token_ids=prompt_token_ids,
            seed=secrets.randbits(64) if request.seed is None else request.seed,
            max_tokens=token_limit(request, len(prompt_token_ids), model.max_model_len),
            created=int(time.time()),
        )
        generation.lease = await self._store.open(generation)
        return generation

    async def resume(self, request_id: str, resume_from: int) -> Generation:
        """Go on with a recorded request whose client has `resume_from` tokens already.

        Raises `NotFound`, `InvalidRequest`, `Overloaded` or `Unavailable`.
        """
        self._must_be_ready()
        self._must_have_room()
        resumption = await self._store.takeover(request_id)
        if resumption is None:
            raise NotFound(f"request_id: no request {request_id!r} is on record", "request_id")
        recorded = resumption.token_ids
        if not 0 <= resume_from <= resumption.generation.max_tokens:
            raise InvalidRequest(
                f"resume_from: {resume_from} is not a number of tokens of this answer; expected 0 "
                f"to {resumption.generation.max_tokens}",
                "resume_from",
            )
        admitted = resumption.generation
        return Admitted(
            request=admitted.request,
            prompt_token_ids=admitted.prompt_token_ids,
            seed=admitted.seed,
            max_tokens=admitted.max_tokens,
            created=admitted.created,
            lease=resumption.lease,
            recorded_token_ids=recorded,
            resume_from=resume_from,
            recorded_finish=resumption.finish_reason,
        )

    async def stream(self, generation: Generation) -> AsyncGenerator[GenerationStep, None]:
        """The answer in steps, the last with its finish reason. Closing it cancels the request."""
        assert isinstance(generation, Admitted), "generations come from `prepare` or `resume`"
        self._num_present += 1
        self._is_idle.clear()
        request_metrics = self._metrics.request_started(len(generation.prompt_token_ids))
        finish_reason: FinishReason | None = None
        try:
            async with self._slots, aclosing(self._answer(generation)) as steps:
                async for step in steps:
                    request_metrics.tokens_committed(len(step.token_ids))
                    finish_reason = step.finish_reason
                    yield step
        finally:
            self._num_present -= 1
            if self._num_present == 0:
                self._is_idle.set()
            self._stats.add(generation.stats)
            request_metrics.finished(finish_reason.value if finish_reason else None)

    async def drain(self, timeout_s: float) -> None:
        """Take no new requests; return when the running ones have ended, or after `timeout_s`."""
        self._is_draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_idle.wait()

    def status(self) -> ServiceStatus:
        """The state of the service."""
        reason = self._unready_reason()
        return ServiceStatus(
            ready=not reason,
            reason=reason,
            model=self.model_name,
            workers=worker_statuses(self._pool),
            num_running=self._num_present,
            stats=self._stats,
            session_store=self._store.status,
        )

    async def _answer(self, generation: Admitted) -> AsyncGenerator[GenerationStep, None]:
        """Replay what is recorded, then decode on."""
        tokenizer = self._tokenizer
        assert tokenizer is not None, "a generation was admitted with it"
        request = generation.request
        settings = sequence_settings(generation, tokenizer)
        text = TextStream(tokenizer, request.stop, settings.stop_token_ids, request.min_tokens)
        progress = Progress(generation, text, generation.resume_from)
        recorded = generation.recorded_token_ids
        sequence = Sequence(
            settings,
            TokenLog.of((*generation.prompt_token_ids, *recorded)),
            len(generation.prompt_token_ids),
        )
        if recorded:
            ended = sequence.has_ended or generation.recorded_finish is not None
            step = progress.advance(recorded, ended)
            if step is not None:
                yield step
            if progress.finish_reason is not None:
                return
        affinity = await self._affinity(generation)
        drafter = self._policies.drafter(request.speculation)
        workers = self._router.place(generation.prompt_token_ids, affinity, drafter)
        speculation = self._policies.policy(request.speculation, drafter)
        try:
            async with aclosing(decode(sequence, workers, speculation)) as rounds:
                async for committed in rounds:
                    start = generation.num_committed_tokens
                    self._record_round(generation, workers, committed)
                    step = progress.advance(committed.token_ids, sequence.has_ended)
                    if step is not None:
                        yield step
                    self._keep_record(generation, workers, start, committed, progress)
                    if progress.finish_reason is not None:
                        return
        except RoundRefused as refusal:
            raise InvalidRequest(refusal.error.message) from refusal
        finally:
            workers.leave()

    def _record_round(
        self, generation: Admitted, workers: PlacedWorkers, committed: Committed
    ) -> None:
        generation.numerics_changed = workers.numerics_changed
        num_tokens = len(committed.token_ids)
        num_drafts, num_accepted = committed.num_draft_tokens, committed.num_accepted_tokens
        generation.stats.record_pass(num_drafts, num_accepted, num_tokens)
        self._metrics.pass_committed(num_drafts, num_accepted, num_tokens)
        self._metrics.round_overhead.observe(committed.overhead_s)
        if committed.propose is not None and committed.propose.failure:
            self._metrics.draft_failed(committed.propose.failure)

    def _keep_record(
        self,
        generation: Admitted,
        workers: PlacedWorkers,
        start: int,
        committed: Committed,
        progress: Progress,
    ) -> None:
        """Record the round, after its text has gone out."""
        lease = generation.lease
        num_kept = generation.num_committed_tokens - start
        self._store.append(lease, start, committed.token_ids[:num_kept])
        if start == len(generation.recorded_token_ids):
            self._store.place(lease, workers.placement)
            if generation.request.session_id:
                self._store.remember_affinity(generation.request.session_id, workers.placement)
        if progress.finish_reason is not None:
            self._store.finish(lease, progress.finish_reason)
        if lease.lost:
            raise Unavailable("the request was resumed at another coordinator")

    async def _affinity(self, generation: Admitted) -> Placement | None:
        if generation.request.session_id:
            return await self._store.affinity(generation.request.session_id)
        return None

    def _unready_reason(self) -> str:
        if self._is_draining:
            return "the coordinator is shutting down"
        return unready_reason(self._pool, self._tokenizer is not None)

    def _must_be_ready(self) -> tuple[Tokenizer, WorkerInfo]:
        model, tokenizer = self._pool.model, self._tokenizer
        if model is None or tokenizer is None or self._is_draining:
            raise Unavailable(self._unready_reason() + "; try again later")
        return tokenizer, model

    def _must_have_room(self) -> None:
        limit = self._limits.max_running_requests + self._limits.max_waiting_requests
        if self._num_present >= limit:
            raise Overloaded(f"{self._num_present} requests are running or waiting; try again")
