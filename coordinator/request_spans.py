"""What the span of a request says of it and of its answer. Never their text, and no token.

Made for requests that are recorded only. Knows no front end: those begin and end the span, and say
how the request came.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import time_ns

from coordinator.requests import FinishReason, Generation, GenerationStep
from paceline.errors import InvalidRequest, NotFound, Overloaded
from paceline.telemetry.names import CHAT, REQUEST_CANCELLED
from paceline.telemetry.span import Attributes, Span, current_span

MAX_ROUND_SPANS = 128
"""Rounds of a request that have spans of their own, at most three in each of two processes. An
answer of some hundred tokens has fewer; more would fill queues and tell little."""

MAX_INTEGER = 2**63 - 1
"""The largest that an attribute can have; seeds may be larger."""

CALLERS_FAULTS = (InvalidRequest, NotFound, Overloaded)
"""Errors that are no failure of ours: the span of a server names them and has no error status."""


class RequestSpans:
    """The span of one request, and what its choices share."""

    def __init__(self, span: Span, generation: Generation, model: str) -> None:
        self.span = span
        self.num_cached_tokens = 0
        """Of the prompts of all choices, tokens whose KV was found."""
        self.first_prefill: Span | None = None
        self._generation = generation
        self._num_round_spans = 0
        span.rename(f"{span.name} {model}")
        span.set(_request_attributes(generation, model))

    @classmethod
    def of(cls, generation: Generation, model: str) -> "RequestSpans | None":
        """Of the request that runs here, if it is recorded."""
        span = current_span()
        return cls(span, generation, model) if span is not None else None

    def takes_round(self) -> bool:
        """Count a round; whether it may have spans of its own."""
        self._num_round_spans += 1
        return self._num_round_spans <= MAX_ROUND_SPANS

    async def watch(
        self, steps: AsyncGenerator[GenerationStep, None]
    ) -> AsyncGenerator[GenerationStep, None]:
        """The same steps; what comes of the answer is noted as it ends, however it does."""
        finished: list[FinishReason] = []
        is_first = True
        try:
            async with aclosing(steps):
                async for step in steps:
                    if is_first:
                        is_first = False
                        waited_s = (time_ns() - self.span.started_ns) / 1e9
                        self.span.set({"gen_ai.response.time_to_first_chunk": waited_s})
                    if step.finish_reason is not None:
                        finished.append(step.finish_reason)
                    yield step
        except (GeneratorExit, asyncio.CancelledError):
            if len(finished) < self._generation.request.n:
                self.span.event(REQUEST_CANCELLED)
            raise
        except Exception as error:
            self.span.fail(type(error).__name__, not isinstance(error, CALLERS_FAULTS))
            raise
        finally:
            self.span.set(self._answer_attributes(finished))

    def _answer_attributes(self, finished: list[FinishReason]) -> Attributes:
        generation, stats = self._generation, self._generation.stats
        return {
            "gen_ai.response.finish_reasons": [reason.value for reason in finished],
            "gen_ai.usage.input_tokens": len(generation.prompt_token_ids),
            "gen_ai.usage.output_tokens": generation.num_committed_tokens,
            "gen_ai.usage.cache_read.input_tokens": self.num_cached_tokens,
            "openai.response.system_fingerprint": generation.system_fingerprint or "",
            "paceline.spec.rounds": stats.num_spec_steps,
            "paceline.spec.proposed": stats.num_proposed_tokens,
            "paceline.spec.drafted": stats.num_draft_tokens,
            "paceline.spec.accepted": stats.num_accepted_draft_tokens,
            "paceline.spec.mean_acceptance_length": stats.mean_acceptance_length,
            "paceline.spec.target_passes": stats.num_target_passes,
        }


def note_resumed(first: Generation) -> None:
    """The request that runs here goes on with one that is on record."""
    span = current_span()
    if span is not None:
        if first.is_chat:  # which gRPC does not say again
            span.rename(CHAT)
            span.set({"gen_ai.operation.name": CHAT})
        span.set({"paceline.request.resumed": True})
        span.link_to(first.traceparent)


def _request_attributes(generation: Generation, model: str) -> Attributes:
    request = generation.request
    sometimes: dict[str, str | float] = {
        "gen_ai.conversation.id": request.session_id,
        "gen_ai.request.choice.count": request.n if request.n > 1 else 0,
        "gen_ai.request.top_k": request.top_k,
        "gen_ai.request.frequency_penalty": request.frequency_penalty,
        "gen_ai.request.presence_penalty": request.presence_penalty,
    }
    named = {name: value for name, value in sometimes.items() if value}
    if request.seed is not None and request.seed <= MAX_INTEGER:
        named["gen_ai.request.seed"] = request.seed
    return {
        "gen_ai.provider.name": "paceline",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.response.id": request.request_id,
        "gen_ai.output.type": "json" if request.response_schema else "text",
        "gen_ai.request.max_tokens": generation.max_tokens,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.request.top_p": request.top_p,
        **named,
    }
