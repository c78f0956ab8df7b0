"""What the coordinator counts, for Prometheus to fetch.

Names end as vLLM's do, so that dashboards for it need one other prefix. Is told plain facts of
requests and rounds, and shown the state of the service when it is fetched (`coordinator.status`).
Invariant: what is shown to clients and what is counted here is the same; tokens behind the end of
an answer are in no count of emitted tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coordinator.decode_loop import Committed, ProposeOutcome
from coordinator.request_metrics import RequestInstruments, RequestMetrics
from coordinator.service_status import ServiceStatus
from coordinator.state_metrics import StateMetrics
from paceline.errors import InvalidRequest, NotFound, Overloaded, PacelineError, Unavailable
from paceline.metrics import PART_BUCKETS, Few, Instruments
from paceline.rounds import RoundTiming

# Fine enough for the median of a busy service, which is about a millisecond.
_OVERHEAD_BUCKETS = (
    *(tenth / 10_000 for tenth in range(1, 21)),
    *(0.0025, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.1),
)
_DRAFT_FAILURES = (
    "Rounds whose drafts did not come (timeout, lost), could not be used (malformed, unchecked), "
    "or were not what they should be (too_many, unknown_token, not_a_number, no_features)."
)
_PARTS = ("draft_queue", "draft_compute", "target_queue", "target_compute", "rest")
_REFUSALS: dict[type[PacelineError], str] = {
    InvalidRequest: "invalid",
    NotFound: "not_found",
    Overloaded: "overloaded",
    Unavailable: "unavailable",
}
_OPERATIONS = ("ask", "write", "probe")
MAX_POSITIONS = 64
"""Places in a round that are told apart: the most drafts that a request may ask for."""


class Metrics:
    """The instruments of one coordinator."""

    def __init__(self) -> None:
        self.instruments = instruments = Instruments()
        counter, histogram = instruments.counter, instruments.histogram
        self._requests = RequestInstruments(instruments)
        refused = counter(
            "requests_refused", "Requests that admission turned away, by why.", "reason"
        )
        self._refused = {error: refused.labels(reason) for error, reason in _REFUSALS.items()}
        self._drafting = _DraftingInstruments(instruments)
        self._target_passes = counter("target_passes", "Passes that committed tokens.")
        self._target_tokens = counter(
            "target_tokens", "Tokens committed in passes, those behind the end of an answer too."
        )
        self._round_overhead = histogram(
            "round_overhead_seconds",
            "From one result of a sequence to the next, without the computing of target and draft.",
            _OVERHEAD_BUCKETS,
        )
        parts = histogram(
            "round_part_seconds",
            "Where the time from one result of a sequence to the next went: waiting and computing "
            "in draft and target, and the rest, which is coordinator and wire.",
            PART_BUCKETS,
            "part",
        )
        self._parts = [parts.labels(part) for part in _PARTS]
        self._state = StateMetrics(instruments)
        store_calls = histogram(
            "session_store_seconds",
            "Time of calls to Redis: `ask` is what a request waits for, `write` a batch of "
            "records behind it, `probe` a look whether it is there.",
            PART_BUCKETS,
            "operation",
        )
        self._store_calls = {name: store_calls.labels(name) for name in _OPERATIONS}
        self._store_errors = counter(
            "session_store_errors", "Calls to Redis that failed, by why.", "reason"
        )
        self._store_troubles = Few()
        self._responses = counter(
            "http_responses",
            "HTTP responses that began, by the template of their path; `none` for paths that are "
            "not served.",
            *("route", "status_class"),
        )

    def request_started(self, num_prompt_tokens: int, trace_id: str = "") -> RequestMetrics:
        """Count an admitted request; the answer to it is reported to what is returned.

        `trace_id` becomes the exemplar of its times, where its trace is recorded.
        """
        return RequestMetrics(self._requests, num_prompt_tokens, trace_id)

    @contextmanager
    def admission(self) -> Iterator[None]:
        """Count a request that is turned away inside."""
        try:
            yield
        except PacelineError as error:
            refused = self._refused.get(type(error))
            if refused is not None:
                refused.inc()
            raise

    def round_committed(self, committed: Committed) -> None:
        """Count one pass of a target for one sequence, and the proposal that it checked."""
        self._target_passes.inc()
        self._target_tokens.inc(len(committed.token_ids))
        propose = committed.propose
        if propose is not None:
            self._drafting.of(propose.drafter).round(committed, propose)
        self._round_overhead.observe(max(0.0, committed.overhead_s))
        drafting = propose.timing if propose is not None else RoundTiming()
        timing = committed.timing
        parts_us = (drafting.queue_us, drafting.compute_us, timing.queue_us, timing.compute_us)
        rest_us = max(0.0, 1e6 * committed.since_last_s - sum(parts_us))
        for part, us in zip(self._parts, (*parts_us, rest_us), strict=True):
            part.observe(us / 1e6)

    def store_called(self, operation: str, seconds: float, trouble: str) -> None:
        """Count a call to Redis; `trouble` says in a word or two what went wrong, if it did."""
        self._store_calls[operation].observe(seconds)
        if trouble:
            reason = self._store_troubles(trouble.partition(":")[0])
            self._store_errors.labels(reason).inc()

    def responded(self, route: str, status: int) -> None:
        """Count an HTTP response that begins."""
        self._responses.labels(route, f"{status // 100}xx").inc()

    def show(self, status: ServiceStatus) -> None:
        """The state of the service, as the next fetch shows it."""
        self._state.status = status


class _DraftingInstruments:
    """What is counted of drafts, for each drafter."""

    def __init__(self, instruments: Instruments) -> None:
        counter = instruments.counter
        self.drafts = counter("spec_decode_num_drafts", "Passes that checked drafts.", "drafter")
        self.draft_tokens = counter("spec_decode_num_draft_tokens", "Drafts checked.", "drafter")
        self.accepted_tokens = counter(
            "spec_decode_num_accepted_tokens", "Drafts accepted.", "drafter"
        )
        self.accepted_tokens_per_position = counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Drafts accepted, by their place in the round, counted from 0.",
            *("drafter", "position"),
        )
        self.proposed_tokens = counter(
            "spec_decode_num_proposed_tokens",
            "Drafts that draft workers proposed; not all are worth checking.",
            "drafter",
        )
        self.compute = counter(
            "spec_decode_draft_compute_seconds",
            "Time that draft workers computed for rounds.",
            "drafter",
        )
        self.failures = counter("draft_failures", _DRAFT_FAILURES, *("drafter", "reason"))
        self._few = Few()
        self._drafters: dict[str, _DrafterCounts] = {}

    def of(self, drafter: str) -> "_DrafterCounts":
        """The counts of one drafter; of `other` where there are suspiciously many."""
        found = self._drafters.get(drafter)
        if found is None:
            name = self._few(drafter)
            found = self._drafters.setdefault(name, _DrafterCounts(self, name))
        return found


class _DrafterCounts:
    """The children of the instruments that belong to one drafter: looked up once."""

    def __init__(self, instruments: _DraftingInstruments, drafter: str) -> None:
        self._instruments = instruments
        self._drafter = drafter
        self._drafts = instruments.drafts.labels(drafter)
        self._draft_tokens = instruments.draft_tokens.labels(drafter)
        self._accepted_tokens = instruments.accepted_tokens.labels(drafter)
        self._proposed_tokens = instruments.proposed_tokens.labels(drafter)
        self._compute = instruments.compute.labels(drafter)
        self._positions: list[Any] = []

    def round(self, committed: Committed, propose: ProposeOutcome) -> None:
        """One round with drafts, or one that should have had some."""
        if committed.num_draft_tokens:
            self._drafts.inc()
            self._draft_tokens.inc(committed.num_draft_tokens)
            self._accepted_tokens.inc(committed.num_accepted_tokens)
            for position in self._places(committed.num_accepted_tokens):
                position.inc()
        if propose.is_predicted:
            return
        self._proposed_tokens.inc(len(propose.drafts.token_ids))
        self._compute.inc(propose.timing.compute_us / 1e6)
        if propose.failure:
            self._instruments.failures.labels(self._drafter, propose.failure).inc()

    def _places(self, num: int) -> list[Any]:
        per_position = self._instruments.accepted_tokens_per_position
        for position in range(len(self._positions), min(num, MAX_POSITIONS)):
            self._positions.append(per_position.labels(self._drafter, position))
        return self._positions[:num]
