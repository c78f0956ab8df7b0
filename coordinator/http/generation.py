"""`/v1/chat/completions` and `/v1/completions`: from a body to an answer, whole or as a stream.

The work for a request ends with its connection, also when the answer is not streamed.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from coordinator.http.answers import CHAT, COMPLETION, Answer, Api
from coordinator.http.authentication import tenant_of
from coordinator.http.chat_body import ChatCompletionBody
from coordinator.http.chunks import Chunks
from coordinator.http.completion_body import CompletionBody
from coordinator.http.event_stream import DONE, EventStream, event
from coordinator.http.parsing import parse
from coordinator.http.resuming import event_id, naming_the_header, resumed_from
from coordinator.http.wire import json_response, read_body, while_connected
from coordinator.requests import Generation, GenerationRequest, GenerationStep
from coordinator.service_status import ServiceStatus
from coordinator.status import is_store_degraded
from paceline.errors import NotFound, shown
from paceline.telemetry.span import current_span


class TextGenerator(Protocol):
    """What answers requests: `coordinator.generator.Generator`, or a script in tests."""

    @property
    def model_name(self) -> str:
        """Empty until a target has answered."""
        ...

    async def prepare(self, request: GenerationRequest) -> Generation:
        """Admit a request, or raise a PacelineError."""
        ...

    async def resume(
        self,
        request_id: str,
        resume_from: tuple[int, ...],
        expected: GenerationRequest | None = None,
        tenant: str = "",
    ) -> Generation:
        """Go on with a recorded request, or raise a PacelineError."""
        ...

    def stream(self, generation: Generation) -> AsyncGenerator[GenerationStep, None]:
        """The answer in steps; the last has a finish reason. Closing it cancels the work."""
        ...

    def status(self) -> ServiceStatus:
        """The state of the service."""
        ...


async def chat_completion(generator: TextGenerator, request: Request) -> Response:
    """Answer a conversation."""
    body = await asyncio.to_thread(parse, ChatCompletionBody, await read_body(request))
    return await _respond(generator, request, body, CHAT)


async def completion(generator: TextGenerator, request: Request) -> Response:
    """Continue a text."""
    body = await asyncio.to_thread(parse, CompletionBody, await read_body(request))
    return await _respond(generator, request, body, COMPLETION)


async def _respond(
    generator: TextGenerator,
    request: Request,
    body: ChatCompletionBody | CompletionBody,
    api: Api,
) -> Response:
    _check_model(generator, body.model)
    resume_from = resumed_from(request, body)
    if (span := current_span()) is not None:
        span.set({"gen_ai.request.stream": body.stream})
    asked = replace(body.to_request(uuid.uuid4().hex), tenant=tenant_of(request))
    answering = _Answering(generator, api, body, asked, resume_from)
    headers = _store_headers(generator.status())
    if body.stream:
        return EventStream(answering.events(), headers)
    answer = await while_connected(request.receive, answering.whole())
    return json_response(answer, headers=headers)


class _Answering:
    """One request on its way."""

    def __init__(
        self,
        generator: TextGenerator,
        api: Api,
        body: ChatCompletionBody | CompletionBody,
        request: GenerationRequest,
        resume_from: tuple[int, ...] | None,
    ) -> None:
        self._generator = generator
        self._api = api
        self._body = body
        self._request = request
        self._resume_from = resume_from

    async def whole(self) -> dict[str, object]:
        """The answer in one piece."""
        generation = await self._generator.prepare(self._request)
        async with aclosing(self._generator.stream(generation)) as stream:
            steps = [step async for step in stream]
        return self._answer(generation).whole(steps)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as events, or the rest of it."""
        if self._resume_from is None:
            generation = await self._generator.prepare(self._request)
            num_committed = [0] * self._request.n
        else:
            with naming_the_header():
                generation = await self._generator.resume(
                    self._request.request_id,
                    self._resume_from,
                    self._request,
                    self._request.tenant,
                )
            num_committed = [*self._resume_from]
        chunks = Chunks(self._answer(generation), self._body.include_usage)
        async with aclosing(self._generator.stream(generation)) as steps:
            async for step in steps:
                opening = chunks.opening(step.choice)
                if opening is not None and self._lacks_opening(num_committed[step.choice]):
                    yield event(opening, event_id(num_committed))
                if (chunk := chunks.of(step)) is not None:
                    num_committed[step.choice] = step.num_committed_tokens
                    yield event(chunk, event_id(num_committed))
        if (usage := chunks.usage()) is not None:
            yield event(usage, event_id(num_committed))
        yield DONE

    def _lacks_opening(self, num_committed: int) -> bool:
        """Whether a choice has yet to be opened: to say twice who speaks does no harm."""
        if self._resume_from is not None and not self._api.is_chat:
            return False
        return num_committed == 0

    def _answer(self, generation: Generation) -> Answer:
        return Answer(
            api=self._api,
            generation=generation,
            model=self._generator.model_name,
            return_token_ids=self._body.return_token_ids,
            echo=isinstance(self._body, CompletionBody) and self._body.echo,
        )


def _check_model(generator: TextGenerator, model: str | None) -> None:
    """Without a target nothing is known yet, and `prepare` says so."""
    served = generator.model_name
    if served and model is not None and model != served:
        raise NotFound(f"model: {shown(model)} is not served here; expected {served!r}", "model")


def _store_headers(status: ServiceStatus) -> dict[str, str]:
    """Tells that a resume at another coordinator would not find the request."""
    return {"x-paceline-session-store": "memory"} if is_store_degraded(status) else {}
