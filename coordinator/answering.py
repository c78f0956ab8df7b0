"""One choice of a request: its rounds on the workers, as the steps that its client gets.

Ties together workers, rounds, text and stops, the record and the counts. Knows nothing about
admission, and nothing about the other choices. Only a request with one choice has its tokens
recorded; several are computed again when they are resumed, which the seed makes the same.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from coordinator.admission import Admitted, sequence_settings
from coordinator.decode_loop import Committed, Workers, decode
from coordinator.metrics import Metrics
from coordinator.progress import Progress
from coordinator.records import Placement, SessionStore
from coordinator.request_spans import RequestSpans
from coordinator.requests import GenerationStep
from coordinator.round_spans import ChoiceSpans
from coordinator.router import PlacedWorkers, Router
from coordinator.scoring import score
from coordinator.sequence import RoundRefused, Sequence
from coordinator.speculation_policies import SpeculationPolicies
from coordinator.text_stream import TextStream
from coordinator.token_speller import TokenSpeller
from coordinator.tokenizer import Tokenizer
from coordinator.tool_calls import ToolCallParser
from paceline.errors import InvalidRequest, Unavailable
from paceline.logs import bind_log_context
from paceline.rounds import SequenceSettings, TokenLogprobs
from paceline.token_log import TokenLog

logger = logging.getLogger(__name__)

PASSING_FAILURES = ("timeout", "lost")
"""Of these every draft has some, and the pool logs drafts that are lost."""


class Answering:
    """Makes the choices of requests, with everything that they share."""

    def __init__(
        self,
        router: Router,
        policies: SpeculationPolicies,
        store: SessionStore,
        metrics: Metrics,
    ) -> None:
        self._router = router
        self._policies = policies
        self._store = store
        self._metrics = metrics
        self._warned: set[tuple[str, str]] = set()

    async def stop(self) -> None:
        """Leave the workers: choices that are not complete end with an error."""
        await self._router.stop()

    async def choice(
        self,
        generation: Admitted,
        choice: int,
        tokenizer: Tokenizer,
        has_begun: asyncio.Event,
        request_spans: RequestSpans | None = None,
    ) -> AsyncGenerator[GenerationStep, None]:
        """Replay what is recorded, then decode on. Sets `has_begun` when the prompt is read."""
        request = generation.request
        settings = sequence_settings(generation, tokenizer, choice)
        text = TextStream(tokenizer, request.stop, settings.stop_token_ids, request.min_tokens)
        resume_from = generation.resume_from[choice] if generation.resume_from else 0
        calls = None
        if request.offered_tools:
            calls = ToolCallParser(f"{request.request_id}/{choice}")
        speller = TokenSpeller(tokenizer) if request.num_logprobs is not None else None
        progress = Progress(generation, text, resume_from, choice, calls, speller)
        recorded = generation.recorded_token_ids
        sequence = Sequence(
            settings,
            TokenLog.of((*generation.prompt_token_ids, *recorded)),
            len(generation.prompt_token_ids),
            tokenizer.vocab_size,
        )
        bind_log_context(sequence_id=sequence.sequence_id)
        affinity = generation.placement or await self._affinity(generation)
        drafter = self._policies.drafter(request.speculation)
        workers = self._router.place(
            generation.prompt_token_ids, affinity, drafter, settings.max_length
        )
        speculation = self._policies.policy(
            request.speculation, drafter, generation.prediction_token_ids
        )
        asked: Workers = workers
        spans = None
        if request_spans is not None:
            asked = speculation = spans = ChoiceSpans(request_spans, choice, workers, speculation)
        try:
            if request.prompt_logprobs and not generation.prompt_logprobs:
                await _score_prompt(generation, settings, tokenizer, asked)
                _note_numerics(generation, workers)
            if recorded or sequence.has_ended:
                logprobs = await _recorded_logprobs(sequence, resume_from, asked)
                ended = sequence.has_ended or generation.recorded_finish is not None
                step = progress.advance(recorded, ended, logprobs)
                if step is not None:
                    yield step
                if progress.finish_reason is not None:
                    if request.n == 1:
                        self._store.finish(generation.lease, progress.finish_reason)
                    return
            async with aclosing(decode(sequence, asked, speculation)) as rounds:
                async for committed in rounds:
                    has_begun.set()
                    start = progress.num_committed_tokens
                    self._count_round(generation, workers, committed)
                    step = progress.advance(
                        committed.token_ids, sequence.has_ended, committed.logprobs
                    )
                    num_kept = progress.num_committed_tokens - start
                    _count_prediction(generation, committed, num_kept)
                    if step is not None:
                        yield step
                    self._keep_record(generation, workers, start, committed, progress)
                    if progress.finish_reason is not None:
                        return
        except RoundRefused as refusal:
            raise InvalidRequest(refusal.error.message) from refusal
        finally:
            workers.leave()
            if spans is not None:
                spans.close()

    def _count_round(
        self, generation: Admitted, workers: PlacedWorkers, committed: Committed
    ) -> None:
        _note_numerics(generation, workers)
        num_tokens = len(committed.token_ids)
        num_drafts, num_accepted = committed.num_draft_tokens, committed.num_accepted_tokens
        generation.stats.record_pass(num_drafts, num_accepted, num_tokens)
        self._metrics.round_committed(committed)
        propose = committed.propose
        if propose is None or propose.is_predicted:
            return
        num_proposed, compute_us = len(propose.drafts.token_ids), propose.timing.compute_us
        generation.stats.record_proposal(num_proposed, compute_us)
        if propose.failure:
            generation.stats.draft_failures[propose.failure] += 1
            self._warn_once(propose.address, propose.failure)

    def _warn_once(self, draft: str, failure: str) -> None:
        """Say which draft is at fault, as soon as it is; what comes and goes says the pool."""
        if failure not in PASSING_FAILURES and (draft, failure) not in self._warned:
            self._warned.add((draft, failure))
            logger.warning(
                "draft worker %s: %s; such drafts change no text, and further ones are only "
                "counted (paceline_draft_failures_total)",
                *(draft, failure),
            )

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
        is_only = generation.request.n == 1
        if is_only:
            num_kept = progress.num_committed_tokens - start
            self._store.append(lease, start, committed.token_ids[:num_kept])
        if start == len(generation.recorded_token_ids):
            self._store.place(lease, workers.placement)
            if session := generation.request.session:
                self._store.remember_affinity(session, workers.placement)
        if is_only and progress.finish_reason is not None:
            self._store.finish(lease, progress.finish_reason)
        if lease.lost:
            raise Unavailable("the request was resumed at another coordinator")

    async def _affinity(self, generation: Admitted) -> Placement | None:
        """Where the session was last. This is a new answer: other numerics change nothing of it."""
        session = generation.request.session
        last = await self._store.affinity(session) if session else None
        return last and replace(last, numerics="")


async def _score_prompt(
    generation: Admitted, settings: SequenceSettings, tokenizer: Tokenizer, workers: Workers
) -> None:
    """Ask for the prompt's log-probabilities, once for all choices."""
    token_ids = generation.prompt_token_ids
    logprobs = await score(token_ids, 1, settings, workers)
    generation.prompt_logprobs = TokenSpeller(tokenizer).spell(token_ids, (None, *logprobs))


async def _recorded_logprobs(
    sequence: Sequence, resume_from: int, workers: Workers
) -> list[TokenLogprobs | None]:
    """Of the recorded tokens, which the record itself does not have; None for the client's own."""
    settings, start = sequence.settings, sequence.num_prompt_tokens + resume_from
    if settings.num_logprobs is None:
        return []
    logprobs = await score(sequence.log.token_ids, start, settings, workers)
    return [*([None] * (sequence.num_new_tokens - len(logprobs))), *logprobs]


def _note_numerics(generation: Admitted, workers: PlacedWorkers) -> None:
    generation.numerics_changed |= workers.numerics_changed
    generation.varies_with_width |= workers.varies_with_width
    generation.numerics |= {workers.placement.numerics} - {""}


def _count_prediction(generation: Admitted, committed: Committed, num_kept: int) -> None:
    """Drafts behind the end of the answer were accepted, but are no tokens of it."""
    if committed.propose is not None and committed.propose.is_predicted:
        num_accepted = min(committed.num_accepted_tokens, num_kept)
        generation.num_accepted_prediction_tokens += num_accepted
        generation.num_rejected_prediction_tokens += committed.num_draft_tokens - num_accepted
