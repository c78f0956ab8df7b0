"""A generator whose answers are written down beforehand, behind the real HTTP server."""

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import uvicorn

from coordinator.http.app import create_app
from coordinator.http.generation import TextGenerator
from coordinator.metrics import Metrics
from coordinator.requests import (
    FinishReason,
    Generation,
    GenerationRequest,
    GenerationStep,
    SpeculativeStats,
)
from coordinator.service_status import ServiceStatus
from coordinator.text_stream import TextStream
from coordinator.tokenizer import Tokenizer

Act = tuple[int, ...] | Exception | asyncio.Event | float
"""Tokens of one round; an error to raise; an event or a number of seconds to wait for."""


@dataclass
class ScriptedGenerator:
    """Follows `script`; a round of n tokens counts as n - 1 accepted drafts of n."""

    tokenizer: Tokenizer
    script: list[Act] = field(default_factory=list)
    admission: Exception | asyncio.Event | None = None
    model_name: str = "scripted"
    session_store: str = "memory"
    is_ready: bool = True
    requests: list[GenerationRequest] = field(default_factory=list)
    num_streams: int = 0
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    """The work for a request has come to an event of the script."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """The work for a request has ended."""

    async def prepare(self, request: GenerationRequest) -> Generation:
        self.requests.append(request)
        try:
            await self._act(self.admission)
        except BaseException:
            self.closed.set()
            raise
        prompt = request.prompt
        if isinstance(prompt, str):
            token_ids = self.tokenizer.encode(prompt)
        elif prompt and not isinstance(prompt[0], int):
            token_ids = self.tokenizer.encode_chat(prompt)
        else:
            token_ids = prompt
        return Generation(request, token_ids, 0, request.max_tokens or 100, created=1_700_000_000)

    async def stream(self, generation: Generation) -> AsyncGenerator[GenerationStep, None]:
        self.num_streams += 1
        request = generation.request
        eos = () if request.ignore_eos else self.tokenizer.eos_token_ids
        stops = (*eos, *request.stop_token_ids)
        text = TextStream(self.tokenizer, request.stop, stops, request.min_tokens)
        try:
            for act in self.script:
                if not isinstance(act, tuple):
                    await self._act(act)
                    continue
                room = generation.max_tokens - generation.num_committed_tokens
                kept = text.feed(act[:room])
                generation.stats.record_pass(len(act), len(act) - 1, len(kept.token_ids))
                generation.num_committed_tokens += len(kept.token_ids)
                ended = generation.num_committed_tokens == generation.max_tokens
                finish = FinishReason.LENGTH if ended else None
                finish = FinishReason.STOP if kept.stopped else finish
                yield GenerationStep(
                    kept.token_ids,
                    kept.text + (text.finish() if finish else ""),
                    generation.num_committed_tokens,
                    finish,
                )
                if finish:
                    return
        finally:
            self.closed.set()

    async def _act(self, act: Exception | asyncio.Event | float | None) -> None:
        match act:
            case Exception():
                raise act
            case asyncio.Event():
                self.waiting.set()
                await act.wait()
            case float():
                await asyncio.sleep(act)

    def status(self) -> ServiceStatus:
        reason = "" if self.is_ready else "no target"
        return ServiceStatus(
            self.is_ready, reason, self.model_name, (), 0, SpeculativeStats(), self.session_store
        )


@asynccontextmanager
async def served(generator: TextGenerator, metrics: Metrics) -> AsyncIterator[str]:
    """The address of a real server with this generator behind it."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        create_app(generator, metrics), lifespan="off", log_config=None, access_log=False
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        server.force_exit = True
        await running
        listener.close()
