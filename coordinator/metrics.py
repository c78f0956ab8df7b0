"""What the coordinator counts, for Prometheus to fetch.

Names end as vLLM's do, so that dashboards for it need one other prefix. Knows nothing about
requests or workers: it is told plain numbers. Invariant: what is shown to clients and what is
counted here is the same; tokens behind the end of an answer are in no count of emitted tokens.
"""

import time
from collections.abc import Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

# Those that the OpenTelemetry conventions for generative AI advise.
_FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3),
    *(0.4, 0.5, 0.75, 1.0, 2.5),
)
_REQUEST_BUCKETS = (
    *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64),
    *(1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
# Fine enough for the median of a busy service, which is about a millisecond.
_OVERHEAD_BUCKETS = (
    *(tenth / 10_000 for tenth in range(1, 21)),
    *(0.0025, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.1),
)
_DRAFT_FAILURES = (
    "Rounds whose drafts did not come (timeout, lost), could not be used (malformed, unchecked), "
    "or were not what they should be (too_many, unknown_token, not_a_number, no_features)."
)


class Metrics:
    """The instruments of one coordinator, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.drafts = self._counter("spec_decode_num_drafts", "Passes that checked drafts.")
        self.draft_tokens = self._counter("spec_decode_num_draft_tokens", "Drafts checked.")
        self.accepted_tokens = self._counter("spec_decode_num_accepted_tokens", "Drafts accepted.")
        self.accepted_tokens_per_position = self._counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Drafts accepted, by their place in the round, counted from 0.",
            "position",
        )
        self.draft_failures = self._counter("draft_failures", _DRAFT_FAILURES, "reason")
        self.proposed_tokens = self._counter(
            "spec_decode_num_proposed_tokens", "Drafts that draft workers proposed."
        )
        self.draft_compute = self._counter(
            "spec_decode_draft_compute_seconds", "Time that draft workers computed for rounds."
        )
        self.target_passes = self._counter("target_passes", "Passes that committed tokens.")
        self.target_tokens = self._counter(
            "target_tokens", "Tokens committed in passes, those behind the end of an answer too."
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of admitted prompts.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens of answers.")
        self.requests = self._counter(
            "request_success",
            "Requests that ended, by the reason of the choice that ended last; `abort`: failed or "
            "left by the client.",
            "finished_reason",
        )
        self.requests_running = self._gauge(
            "num_requests_running", "Requests that are answered or wait for it."
        )
        self.session_store_degraded = self._gauge(
            "session_store_degraded",
            "1 while records of requests are in memory only although Redis is configured.",
        )
        self.first_token = self._histogram(
            "time_to_first_token", "From admission to the first token.", _FIRST_TOKEN_BUCKETS
        )
        self.per_token = self._histogram(
            "time_per_output_token",
            "Mean time per token of a choice, the first token left out.",
            _TOKEN_BUCKETS,
        )
        self.round_overhead = self._histogram(
            "round_overhead",
            "From one result of a sequence to the next, without the computing of target and draft.",
            _OVERHEAD_BUCKETS,
        )
        self.request_latency = self._histogram(
            "e2e_request_latency", "From admission to the end of the answer.", _REQUEST_BUCKETS
        )
        self._traffic = _Traffic()
        self.registry.register(self._traffic)

    def request_started(self, num_prompt_tokens: int) -> "RequestMetrics":
        """Count an admitted request; the answer to it is reported to what is returned."""
        self.prompt_tokens.inc(num_prompt_tokens)
        self.requests_running.inc()
        return RequestMetrics(self)

    def pass_committed(
        self, num_draft_tokens: int, num_accepted_tokens: int, num_committed_tokens: int
    ) -> None:
        """Count what one pass of a target did for one sequence."""
        self.target_passes.inc()
        self.target_tokens.inc(num_committed_tokens)
        if num_draft_tokens == 0:
            return
        self.drafts.inc()
        self.draft_tokens.inc(num_draft_tokens)
        self.accepted_tokens.inc(num_accepted_tokens)
        for position in range(num_accepted_tokens):
            self.accepted_tokens_per_position.labels(position).inc()

    def proposed(self, num_tokens: int, compute_s: float) -> None:
        """Count what a draft worker proposed for one round, and how long it computed for that."""
        self.proposed_tokens.inc(num_tokens)
        self.draft_compute.inc(compute_s)

    def draft_failed(self, reason: str) -> None:
        """Count a round whose drafts had this fault: one or two words, not a message."""
        self.draft_failures.labels(reason).inc()

    def show_traffic(self, totals: Mapping[str, tuple[int, int]]) -> None:
        """Bytes sent and received so far, by the workers' role; counted where they are known."""
        self._traffic.totals = totals

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"paceline_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"paceline_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"paceline_{name}_seconds", text, buckets=buckets, registry=self.registry)


class _Traffic(Collector):
    """Counters whose values are counted elsewhere and shown here."""

    def __init__(self) -> None:
        self.totals: Mapping[str, tuple[int, int]] = {}

    def collect(self) -> Iterator[CounterMetricFamily]:
        """One family for each direction."""
        text = "Bytes of the messages of rounds that {} workers of the role."
        for index, (name, how) in enumerate((("sent", "went to"), ("received", "came from"))):
            family = CounterMetricFamily(
                f"paceline_worker_{name}_bytes", text.format(how), labels=["role"]
            )
            for role, totals in self.totals.items():
                family.add_metric([role], totals[index])
            yield family


class RequestMetrics:
    """The counts and times of one request."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._started_s = time.monotonic()
        self._choices: dict[int, _ChoiceTimes] = {}

    def tokens_committed(self, num_tokens: int, choice: int = 0) -> None:
        """Count tokens that belong to a choice."""
        if num_tokens == 0:
            return
        now = time.monotonic()
        if not self._choices:
            self._metrics.first_token.observe(now - self._started_s)
        times = self._choices.setdefault(choice, _ChoiceTimes(now))
        times.last_s = now
        times.num_tokens += num_tokens
        self._metrics.generation_tokens.inc(num_tokens)

    def finished(self, reason: str | None) -> None:
        """Count the end of the request; None when it failed or its client left. Once only."""
        self._metrics.requests_running.dec()
        self._metrics.requests.labels(reason or "abort").inc()
        if reason is None:
            return
        self._metrics.request_latency.observe(time.monotonic() - self._started_s)
        for times in self._choices.values():
            if times.num_tokens > 1:
                decoding_s = times.last_s - times.first_s
                self._metrics.per_token.observe(decoding_s / (times.num_tokens - 1))


class _ChoiceTimes:
    """When the first and the last tokens of a choice came, and how many."""

    def __init__(self, first_s: float) -> None:
        self.first_s = self.last_s = first_s
        self.num_tokens = 0
