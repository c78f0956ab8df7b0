"""The coordinator's own service on gRPC."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc

from coordinator.generator import Generator
from coordinator.grpc_requests import request_of
from coordinator.requests import (
    FinishReason,
    Generation,
    GenerationStep,
    SpeculativeStats,
)
from coordinator.rpc_spans import headers_of, served
from coordinator.scored_tokens import ScoredToken
from paceline.api_keys import ApiKeys
from paceline.errors import InvalidRequest, PacelineError, Unavailable
from paceline.grpc_errors import detailed_status_of
from paceline.grpc_keys import tenant_of
from paceline.telemetry.names import CHAT, TEXT_COMPLETION
from paceline.telemetry.tracer import NOT_TRACED, Tracer
from paceline.v1 import coordinator_pb2, coordinator_pb2_grpc, tokens_pb2

SERVICE_NAME = "paceline.v1.CoordinatorService"

STALLED_S = 60.0
"""A client that takes nothing for so long while text waits for it is given up, as over HTTP."""

ServicerContext = grpc.aio.ServicerContext[Any, Any]

FINISH_REASONS = {
    FinishReason.STOP: coordinator_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: coordinator_pb2.FINISH_REASON_LENGTH,
    FinishReason.TOOL_CALLS: coordinator_pb2.FINISH_REASON_TOOL_CALLS,
}


class CoordinatorServicer(coordinator_pb2_grpc.CoordinatorServiceServicer):
    """Serves one generator."""

    def __init__(
        self, generator: Generator, keys: ApiKeys | None = None, tracer: Tracer = NOT_TRACED
    ) -> None:
        """`keys` say whose a request is; whoever has none of them does not get here."""
        self._generator = generator
        self._keys = keys
        self._tracer = tracer

    async def Generate(
        self, request: coordinator_pb2.GenerateRequest, context: ServicerContext
    ) -> AsyncIterator[coordinator_pb2.GenerateResponse]:
        """One answer or several; a client that goes away cancels them."""
        operation = CHAT if request.HasField("chat") else TEXT_COMPLETION
        headers = headers_of(context.invocation_metadata())
        try:
            with served(self._tracer, operation, headers):
                generation = await self._admit(request, tenant_of(self._keys, context))
                is_first = True
                num_left = generation.request.n
                async with aclosing(self._generator.stream(generation)) as steps:
                    async for step in steps:
                        num_left -= step.finish_reason is not None
                        async with _given_up_when_stalled(steps):
                            yield _response(generation, step, is_first, is_last=num_left == 0)
                        is_first = False
        except PacelineError as error:
            status = detailed_status_of(error)
            await context.abort(status.code, status.details, status.trailing_metadata)

    async def GetStatus(
        self, request: coordinator_pb2.GetStatusRequest, context: ServicerContext
    ) -> coordinator_pb2.GetStatusResponse:
        """The state of the service."""
        status = self._generator.status()
        return coordinator_pb2.GetStatusResponse(
            ready=status.ready,
            workers=[
                coordinator_pb2.WorkerStatus(
                    address=worker.address,
                    role=worker.role,
                    ready=worker.ready,
                    reason=worker.reason,
                    model=worker.model,
                    drafter=worker.drafter,
                    num_sequences=worker.num_sequences,
                    numerics=worker.numerics,
                    num_parameters=worker.num_parameters,
                    sent_bytes=worker.sent_bytes,
                    received_bytes=worker.received_bytes,
                    varies_with_width=worker.varies_with_width,
                )
                for worker in status.workers
            ],
            num_running=status.num_running,
            speculative_decoding=_stats(status.stats),
            sources=[
                coordinator_pb2.SourceStatus(
                    source=source.source,
                    role=source.role,
                    num_open=source.num_open,
                    num_closed=source.num_closed,
                    heard_s_ago=source.heard_s_ago,
                    problem=source.problem,
                )
                for source in status.sources
            ],
        )

    async def _admit(self, message: coordinator_pb2.GenerateRequest, tenant: str) -> Generation:
        if not message.resume_from:
            return await self._generator.prepare(replace(request_of(message), tenant=tenant))
        others = [field.name for field, _ in message.ListFields()]
        extra = [name for name in others if name not in ("request_id", "resume_from")]
        if extra:
            raise InvalidRequest(
                f"{extra[0]}: is set beside resume_from; expected only request_id, since the rest "
                "is on record",
                extra[0],
            )
        resume_from = tuple(message.resume_from)
        return await self._generator.resume(message.request_id, resume_from, tenant=tenant)


@asynccontextmanager
async def _given_up_when_stalled(
    steps: AsyncGenerator[GenerationStep, None],
) -> AsyncIterator[None]:
    """Close `steps` when the client takes nothing for too long: others wait for the room.

    The call itself cannot be ended while grpc writes to it; that is told when the client goes on.
    """
    closing: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()
    stalled = loop.call_later(STALLED_S, lambda: closing.append(loop.create_task(_closed(steps))))
    try:
        yield
    finally:
        stalled.cancel()
    if closing:
        await closing[0]
        raise Unavailable(f"the client took nothing for {STALLED_S:g} s and was given up")


async def _closed(steps: AsyncGenerator[GenerationStep, None]) -> None:
    await steps.aclose()


def _response(
    generation: Generation, step: GenerationStep, is_first: bool, is_last: bool
) -> coordinator_pb2.GenerateResponse:
    response = coordinator_pb2.GenerateResponse(
        request_id=generation.request.request_id,
        text=step.text,
        token_ids=step.token_ids,
        num_committed_tokens=step.num_committed_tokens,
        prompt_token_ids=generation.prompt_token_ids if is_first else (),
        choice=step.choice,
        system_fingerprint=generation.system_fingerprint or "",
        numerics_changed=generation.numerics_changed,
        varies_with_width=generation.varies_with_width,
        tool_calls=[
            coordinator_pb2.ToolCallDelta(
                number=delta.number, id=delta.id, name=delta.name, arguments=delta.arguments
            )
            for delta in step.tool_calls
        ],
        logprobs=map(_logprobs, step.logprobs),
        prompt_logprobs=map(_logprobs, generation.prompt_logprobs[1:] if is_first else ()),
    )
    if step.finish_reason is not None:
        response.finish_reason = FINISH_REASONS[step.finish_reason]
    if is_last:
        response.usage.prompt_tokens = len(generation.prompt_token_ids)
        response.usage.completion_tokens = generation.num_committed_tokens
        response.usage.accepted_prediction_tokens = generation.num_accepted_prediction_tokens
        response.usage.rejected_prediction_tokens = generation.num_rejected_prediction_tokens
        response.speculative_decoding.CopyFrom(_stats(generation.stats))
    return response


def _logprobs(scored: ScoredToken) -> tokens_pb2.TokenLogprobs:
    return tokens_pb2.TokenLogprobs(
        logprob=scored.logprob,
        top_token_ids=[likely.token.token_id for likely in scored.top],
        top_logprobs=[likely.logprob for likely in scored.top],
    )


def _stats(stats: SpeculativeStats) -> coordinator_pb2.SpeculativeDecodingMetrics:
    return coordinator_pb2.SpeculativeDecodingMetrics(
        num_spec_steps=stats.num_spec_steps,
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted_draft_tokens=stats.num_accepted_draft_tokens,
        acceptance_histogram=stats.acceptance_histogram,
        num_target_passes=stats.num_target_passes,
        num_committed_tokens=stats.num_committed_tokens,
        num_proposed_tokens=stats.num_proposed_tokens,
        draft_compute_us=stats.draft_compute_us,
        draft_failures=stats.draft_failures,
    )
