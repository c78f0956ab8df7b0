"""Which drafter a request uses, and which policy decides about its drafts.

Keeps what all requests with the same drafter have seen, so that a new one does not begin from
nothing.
"""

from collections.abc import Sequence

from coordinator.decode_loop import PREDICTION
from coordinator.decode_loop import Speculation as Policy
from coordinator.draft_experience import SharedExperience
from coordinator.pass_costs import CostModel
from coordinator.prediction import PredictedSpeculation, Prediction
from coordinator.requests import Speculation
from coordinator.speculation import AdaptiveSpeculation, ExactSpeculation, PlainDecoding
from paceline.workers.pool import WorkerPool

_NO_LIMIT = 64
"""Drafts per round, where the target names no limit."""


class SpeculationPolicies:
    """The policies of one service."""

    def __init__(self, pool: WorkerPool, max_speculative_tokens: int) -> None:
        """`max_speculative_tokens`: most drafts per round for requests that leave it open."""
        self._pool = pool
        self._max_speculative_tokens = max_speculative_tokens
        self._experience: dict[str, SharedExperience] = {}

    def drafter(self, speculation: Speculation) -> str | None:
        """The method to draft with: the one asked for, else that of the first draft that is up."""
        if speculation.method not in ("auto", "off"):
            return speculation.method
        return next((w.info.drafter for w in self._pool.ready_drafts() if w.info), None)

    def policy(
        self,
        speculation: Speculation,
        drafter: str | None,
        prediction_token_ids: Sequence[int] = (),
    ) -> Policy:
        """A policy for one sequence."""
        number = speculation.num_speculative_tokens
        if speculation.method == "off" or number == 0:
            return PlainDecoding()
        own = self._own(speculation, drafter or "", self._max_speculative_tokens)
        if not prediction_token_ids:
            return own
        # Predictions are long, and cost nothing to make: as many as the target takes.
        limit = (self._pool.model.max_speculative_tokens if self._pool.model else 0) or _NO_LIMIT
        predicted = self._own(speculation, PREDICTION, limit)
        return PredictedSpeculation(Prediction(prediction_token_ids), predicted, own)

    def _own(self, speculation: Speculation, drafter: str, limit: int) -> Policy:
        """A policy for the drafts of one method alone."""
        number = speculation.num_speculative_tokens
        limit = limit if number is None else number
        if limit == 0:
            return PlainDecoding()
        shared = self._shared_experience(drafter)
        if speculation.method != "auto" and number is not None:
            return ExactSpeculation(shared, number)
        return AdaptiveSpeculation(shared, limit)

    def _shared_experience(self, drafter: str) -> SharedExperience:
        if drafter not in self._experience:
            costs = self._pool.model.pass_costs if self._pool.model else ()
            self._experience[drafter] = SharedExperience(CostModel(costs))
        return self._experience[drafter]
