"""Requests from admission to their last token, and the state of the service.

Front ends (HTTP, gRPC) call `prepare` or `resume`, then iterate `stream`.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager, suppress
from dataclasses import replace

from coordinator.admission import (
    MAX_CHOICES,
    Admitted,
    Limits,
    check_resume_from,
    check_same,
    check_speculation,
    check_values,
    token_limit,
    with_rule,
)
from coordinator.answer_grammar import answer_grammar
from coordinator.answering import Answering
from coordinator.choices import interleave
from coordinator.metrics import Metrics
from coordinator.prompts import encode_prediction, encode_prompt, is_chat, prompt_text
from coordinator.records import SessionStore, on_record
from coordinator.request_metrics import RequestMetrics
from coordinator.request_spans import RequestSpans, note_resumed
from coordinator.requests import (
    FinishReason,
    Generation,
    GenerationRequest,
    GenerationStep,
    SpeculativeStats,
)
from coordinator.router import Router
from coordinator.service_status import ServiceStatus
from coordinator.speculation_policies import SpeculationPolicies
from coordinator.status import (
    service_events,
    source_statuses,
    unready_reason,
    worker_statuses,
)
from coordinator.tokenizer import Tokenizer
from paceline.errors import Draining, InvalidConfig, InvalidRequest, Overloaded, Unavailable
from paceline.telemetry.names import ADMISSION, QUEUE
from paceline.telemetry.span import current_child, current_trace_id, current_traceparent
from paceline.workers import WorkerLost
from paceline.workers.pool import WorkerPool

logger = logging.getLogger(__name__)

TOKENIZER_RETRY_S = 0.5
CUT_S = 1.0
"""How long answers that are cut may take to tell it their clients."""


class Generator:
    """Answers requests with the workers of a pool."""

    def __init__(
        self, pool: WorkerPool, store: SessionStore, metrics: Metrics, limits: Limits
    ) -> None:
        self._pool = pool
        self._store = store
        self._metrics = metrics
        self._limits = limits
        self._tokenizer: Tokenizer | None = None
        policies = SpeculationPolicies(pool, limits.num_speculative_tokens)
        self._router = Router(pool)
        self._answering = Answering(self._router, policies, store, metrics)
        self._slots = asyncio.Semaphore(limits.max_running_requests)
        self._num_present = 0
        self._num_arriving = 0
        self._is_idle = asyncio.Event()
        self._is_draining = False
        self._stats = SpeculativeStats()

    @property
    def model_name(self) -> str:
        """The name of the served model; empty until a target has answered."""
        return self._pool.model.model if self._pool.model else ""

    async def load_tokenizer(self) -> None:
        """Fetch the tokenizer from the first target that has one; returns when that is done."""
        while self._tokenizer is None:
            for worker in self._pool.ready_targets() or self._pool.closed_targets():
                try:
                    files = await worker.fetch_tokenizer()
                    self._tokenizer = await asyncio.to_thread(Tokenizer, files)
                except (WorkerLost, InvalidConfig) as error:
                    logger.warning("no tokenizer from %s: %s", worker.address, error)
                    continue
                return
            await asyncio.sleep(TOKENIZER_RETRY_S)

    async def prepare(self, request: GenerationRequest) -> Generation:
        """Admit a request, or raise a `PacelineError`: tokenize it, check it, begin its record."""
        with self._metrics.admission(), self._room_for(request.n), current_child(ADMISSION):
            return await self._admit(request)

    async def _admit(self, request: GenerationRequest) -> Generation:
        tokenizer, lengths = self._must_be_ready()
        request = with_rule(request, self._limits.acceptance_rule)
        check_values(request, tokenizer.vocab_size)
        check_speculation(request.speculation, self._pool.known_drafters())
        grammar = await asyncio.to_thread(answer_grammar, request)
        prompt_token_ids = await encode_prompt(tokenizer, request, max(lengths))
        prediction_token_ids = await encode_prediction(tokenizer, request, max(lengths))
        generation = Admitted(
            request=request,
            prompt_token_ids=prompt_token_ids,
            seed=secrets.randbits(64) if request.seed is None else request.seed,
            max_tokens=token_limit(request, len(prompt_token_ids), lengths),
            created=int(time.time()),
            grammar=grammar,
            prediction_token_ids=prediction_token_ids,
            prompt_text=await prompt_text(tokenizer, request, prompt_token_ids),
            is_chat=is_chat(request.prompt),
            traceparent=current_traceparent(),
        )
        generation.lease = await self._store.open(generation)
        return generation

    async def resume(
        self,
        request_id: str,
        resume_from: tuple[int, ...],
        expected: GenerationRequest | None = None,
        tenant: str = "",
    ) -> Generation:
        """Go on with a recorded request, each choice behind the tokens that the client has of it.

        It must be the tenant's, and the one `expected`, if that is given. Raises `NotFound`,
        `InvalidRequest`, `Overloaded` or `Unavailable`.
        """
        with self._metrics.admission(), self._room_for(len(resume_from)), current_child(ADMISSION):
            return await self._take_over(request_id, resume_from, expected, tenant)

    async def _take_over(
        self,
        request_id: str,
        resume_from: tuple[int, ...],
        expected: GenerationRequest | None,
        tenant: str,
    ) -> Generation:
        tokenizer, lengths = self._must_be_ready()
        # What is refused must not take the request away from whoever answers it.
        recorded = await on_record(self._store.look_up(request_id), request_id, tenant)
        admitted = recorded.generation
        note_resumed(admitted)
        num_recorded = len(recorded.token_ids)
        check_resume_from(resume_from, admitted, num_recorded, self._router.targets_vary)
        text = ""
        if expected is not None:
            text = await prompt_text(tokenizer, expected, admitted.prompt_token_ids)
            prompt = await encode_prompt(tokenizer, expected, max(lengths))
            expected = replace(expected, prompt=prompt)
            check_same(expected, admitted)
        request = admitted.request
        prediction_token_ids = await encode_prediction(tokenizer, request, max(lengths))
        resumption = await on_record(self._store.takeover(request_id), request_id, tenant)
        return Admitted(
            request=request,
            prompt_token_ids=admitted.prompt_token_ids,
            seed=admitted.seed,
            max_tokens=admitted.max_tokens,
            created=admitted.created,
            grammar=admitted.grammar,
            lease=resumption.lease,
            recorded_token_ids=resumption.token_ids,
            resume_from=resume_from,
            recorded_finish=resumption.finish_reason,
            placement=resumption.placement,
            numerics=frozenset({resumption.placement.numerics} - {""}),
            prediction_token_ids=prediction_token_ids,
            prompt_text=text,
        )

    async def stream(self, generation: Generation) -> AsyncGenerator[GenerationStep, None]:
        """The answer in steps, the last with its finish reason. Closing it cancels the request."""
        assert isinstance(generation, Admitted), "generations come from `prepare` or `resume`"
        num_choices = generation.request.n
        self._num_present += num_choices
        num_prompt_tokens = len(generation.prompt_token_ids)
        request_metrics = self._metrics.request_started(num_prompt_tokens, current_trace_id())
        finish_reason: FinishReason | None = None
        num_ended = 0
        has_begun = asyncio.Event()
        spans = RequestSpans.of(generation, self.model_name)
        shared = (has_begun, request_metrics, spans)
        choices = [self._choice(generation, choice, *shared) for choice in range(num_choices)]
        answering = interleave(choices, has_begun)
        try:
            async with aclosing(spans.watch(answering) if spans else answering) as steps:
                async for step in steps:
                    request_metrics.tokens_committed(len(step.token_ids), step.choice)
                    num_ended += step.finish_reason is not None
                    finish_reason = step.finish_reason if num_ended == num_choices else None
                    yield step
        finally:
            self._num_present -= num_choices
            self._has_left()
            self._stats.add(generation.stats)
            request_metrics.finished(finish_reason.value if finish_reason else None)

    async def _choice(
        self,
        generation: Admitted,
        choice: int,
        has_begun: asyncio.Event,
        request_metrics: RequestMetrics,
        spans: RequestSpans | None,
    ) -> AsyncGenerator[GenerationStep, None]:
        """One choice, in its turn: each counts against the limit by itself."""
        tokenizer = self._tokenizer
        assert tokenizer is not None, "a generation was admitted with it"
        steps = self._answering.choice(generation, choice, tokenizer, has_begun, spans)
        async with AsyncExitStack() as turn:
            with current_child(QUEUE, {"paceline.choice.index": choice}):
                await turn.enter_async_context(request_metrics.turn(self._slots))
            await turn.enter_async_context(aclosing(steps))
            async for step in steps:
                yield step

    async def drain(self, timeout_s: float) -> None:
        """Take no new requests, let the running ones end, and leave the workers.

        What has not ended after `timeout_s` ends with an error that says how to go on elsewhere.
        """
        self._is_draining = True
        await self._until_idle(timeout_s)
        await self._answering.stop()
        await self._until_idle(CUT_S)

    async def _until_idle(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._num_present + self._num_arriving:
                    self._is_idle.clear()
                    await self._is_idle.wait()

    def _has_left(self) -> None:
        if not self._num_present + self._num_arriving:
            self._is_idle.set()

    def status(self) -> ServiceStatus:
        """The state of the service."""
        reason = self._unready_reason()
        return ServiceStatus(
            ready=not reason,
            reason=reason,
            model=self.model_name,
            workers=worker_statuses(self._pool),
            sources=source_statuses(self._pool),
            num_running=self._num_present,
            stats=self._stats,
            session_store=self._store.status,
            num_unwritten_records=self._store.num_unwritten,
            events=service_events(self._pool, self._router),
        )

    def _unready_reason(self) -> str:
        if self._is_draining:
            return "the coordinator is draining: it shuts down and takes no new requests"
        return unready_reason(self._pool, self._tokenizer is not None)

    def _must_be_ready(self) -> tuple[Tokenizer, list[int]]:
        """The tokenizer, and the tokens of the longest sequence that each target takes."""
        lengths, tokenizer = self._pool.longest_sequences(), self._tokenizer
        if self._is_draining:
            raise Draining(self._unready_reason() + "; ask another one, or try again later")
        if not lengths or tokenizer is None:
            raise Unavailable(self._unready_reason() + "; try again later")
        return tokenizer, lengths

    @contextmanager
    def _room_for(self, num_choices: int) -> Iterator[None]:
        """Room for choices until `stream` counts them, which it does without a pause."""
        num_choices = min(num_choices, MAX_CHOICES)
        limit = self._limits.max_running_requests + self._limits.max_waiting_requests
        if num_choices > limit:
            raise InvalidRequest(
                f"n: is {num_choices}; expected at most {limit}, the choices that run or wait here",
                "n",
            )
        num_taken = self._num_present + self._num_arriving
        if num_taken + num_choices > limit:
            raise Overloaded(f"{num_taken} requests are running or waiting; try again")
        self._num_arriving += num_choices
        try:
            yield
        finally:
            self._num_arriving -= num_choices
            self._has_left()
