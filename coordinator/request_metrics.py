"""What is counted of requests, from admission to the end of their answers."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from paceline.metrics import FIRST_TOKEN_BUCKETS, REQUEST_BUCKETS, TOKEN_BUCKETS, Instruments

_REASONS = ("stop", "length", "tool_calls", "abort")


class RequestInstruments:
    """The instruments that all requests share."""

    def __init__(self, instruments: Instruments) -> None:
        counter, gauge, histogram = instruments.counter, instruments.gauge, instruments.histogram
        self.prompt_tokens = counter("prompt_tokens", "Tokens of admitted prompts.")
        self.generation_tokens = counter("generation_tokens", "Tokens of answers.")
        ended = counter(
            "request_success",
            "Requests that ended, by the reason of the choice that ended last; `abort`: failed or "
            "left by the client.",
            "finished_reason",
        )
        self.ended = {reason: ended.labels(reason) for reason in _REASONS}
        self.running = gauge("num_requests_running", "Choices of requests that are decoded.")
        self.waiting = gauge(
            "num_requests_waiting", "Choices of requests that wait for a place among the running."
        )
        self.queue = histogram(
            "request_queue_time_seconds",
            "How long choices waited for a place among the running.",
            REQUEST_BUCKETS,
        )
        self.first_token = histogram(
            "time_to_first_token_seconds", "From admission to the first token.", FIRST_TOKEN_BUCKETS
        )
        self.per_token = histogram(
            "time_per_output_token_seconds",
            "Mean time per token of a choice, the first token left out.",
            TOKEN_BUCKETS,
        )
        self.latency = histogram(
            "e2e_request_latency_seconds",
            "From admission to the end of the answer.",
            REQUEST_BUCKETS,
        )


class RequestMetrics:
    """The counts and times of one request."""

    def __init__(
        self, instruments: RequestInstruments, num_prompt_tokens: int, trace_id: str = ""
    ) -> None:
        self._instruments = instruments
        self._exemplar = {"trace_id": trace_id} if trace_id else None
        self._started_s = time.monotonic()
        self._choices: dict[int, _ChoiceTimes] = {}
        instruments.prompt_tokens.inc(num_prompt_tokens)

    @asynccontextmanager
    async def turn(self, places: asyncio.Semaphore) -> AsyncIterator[None]:
        """Wait for one of the places among the running choices, and hold it."""
        came_s = time.monotonic()
        with self._instruments.waiting.track_inprogress():
            await places.acquire()
        try:
            self._instruments.queue.observe(time.monotonic() - came_s, self._exemplar)
            with self._instruments.running.track_inprogress():
                yield
        finally:
            places.release()

    def tokens_committed(self, num_tokens: int, choice: int = 0) -> None:
        """Count tokens that belong to a choice."""
        if num_tokens == 0:
            return
        now = time.monotonic()
        if not self._choices:
            self._instruments.first_token.observe(now - self._started_s, self._exemplar)
        times = self._choices.setdefault(choice, _ChoiceTimes(now))
        times.last_s = now
        times.num_tokens += num_tokens
        self._instruments.generation_tokens.inc(num_tokens)

    def finished(self, reason: str | None) -> None:
        """Count the end of the request; None when it failed or its client left. Once only."""
        self._instruments.ended[reason or "abort"].inc()
        if reason is None:
            return
        latency_s = time.monotonic() - self._started_s
        self._instruments.latency.observe(latency_s, self._exemplar)
        for times in self._choices.values():
            if times.num_tokens > 1:
                decoding_s = times.last_s - times.first_s
                per_token_s = decoding_s / (times.num_tokens - 1)
                self._instruments.per_token.observe(per_token_s, self._exemplar)


class _ChoiceTimes:
    """When the first and the last tokens of a choice came, and how many."""

    def __init__(self, first_s: float) -> None:
        self.first_s = self.last_s = first_s
        self.num_tokens = 0
