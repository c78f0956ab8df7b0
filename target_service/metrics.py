"""What a target counts: what drafts and targets have in common, and what it verified.

Names of its own beside the coordinator's, though they count the same tokens: a sum over all
processes must not count them twice. Invariant: the two agree, but for what was lost on the way.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from paceline.engine.device_worker import DeviceWorker
from paceline.engine.kv_cache import KVCache
from paceline.engine.pass_counts import PassCounts
from paceline.engine.worker_metrics import WorkerMetrics
from paceline.metrics import Values
from paceline.rounds import VerifyResult, VerifyRound, WorkerInfo


class Group(Protocol):
    """The ranks of a target that has several, as rank 0 sees them."""

    size: int
    num_bytes_sent: int
    num_bytes_received: int


class TargetMetrics:
    """The instruments of one target."""

    def __init__(
        self,
        worker: DeviceWorker[VerifyRound, VerifyResult],
        passes: PassCounts,
        kv_cache: KVCache[Any],
        info: WorkerInfo,
        group: Group | None = None,
    ) -> None:
        self._common = WorkerMetrics("target", worker, passes, info)
        self.instruments = self._common.instruments
        counter = self.instruments.counter
        self._draft_tokens = counter("verify_draft_tokens", "Drafts that passes checked.")
        self._accepted_tokens = counter("verify_accepted_tokens", "Of these, the accepted ones.")
        self._committed_tokens = counter(
            "verify_committed_tokens", "Tokens that passes added to sequences."
        )
        self._show(
            "worker_pass_rows",
            "Rows of passes, summed: tokens, drafts and chunks of prompts.",
            lambda: {(): passes.num_rows},
        )
        self._show(
            "prefix_cache_queries",
            "Tokens of sequences that were looked up in the KV cache.",
            lambda: {(): kv_cache.num_queried_tokens},
        )
        self._show(
            "prefix_cache_hits",
            "Of these, the tokens whose KV was there.",
            lambda: {(): kv_cache.num_hit_tokens},
        )
        self._show(
            "kv_cache_evictions",
            "Ended sequences whose KV was forgotten for room; it could not be found again.",
            lambda: {(): kv_cache.num_evictions},
        )
        self.instruments.shown_gauge(
            "kv_cache_retained_tokens",
            "Room with KV of ended sequences, which counts as free and can be found again.",
            (),
            lambda: {(): kv_cache.num_retained},
        )
        self._show_ranks(group)

    def answered(self, results: Sequence[VerifyResult]) -> None:
        """Count results that go out."""
        self._common.answered(results)
        for result in results:
            self._draft_tokens.inc(result.num_draft_tokens)
            self._accepted_tokens.inc(result.num_accepted_tokens)
            self._committed_tokens.inc(len(result.token_ids))

    def _show_ranks(self, group: Group | None) -> None:
        self.instruments.shown_gauge(
            "target_tensor_parallel_size",
            "Ranks that share the model.",
            (),
            lambda: {(): group.size if group else 1},
        )

        def exchanged() -> Values:
            if group is None:
                return {("sent",): 0, ("received",): 0}
            return {("sent",): group.num_bytes_sent, ("received",): group.num_bytes_received}

        self.instruments.shown_counter(
            "rank_exchange_bytes",
            "What rank 0 of a target exchanges with the others: `sent`, `received`.",
            ("direction",),
            exchanged,
        )

    def _show(self, name: str, text: str, read: Callable[[], Values]) -> None:
        self.instruments.shown_counter(name, text, (), read)
