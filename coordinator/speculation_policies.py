"""Which drafter a request uses, and which policy decides about its drafts.

Keeps what all requests with the same drafter have seen, so that a new one does not begin from
nothing.
"""

from coordinator.decode_loop import Speculation as Policy
from coordinator.requests import Speculation
from coordinator.speculation import (
    AdaptiveSpeculation,
    CostModel,
    ExactSpeculation,
    PlainDecoding,
    SharedExperience,
)
from paceline.workers.pool import WorkerPool


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

    def policy(self, speculation: Speculation, drafter: str | None) -> Policy:
        """A policy for one sequence."""
        number = speculation.num_speculative_tokens
        limit = self._max_speculative_tokens if number is None else number
        if speculation.method == "off" or limit == 0:
            return PlainDecoding()
        shared = self._shared_experience(drafter or "")
        if speculation.method != "auto" and number is not None:
            return ExactSpeculation(shared, number)
        return AdaptiveSpeculation(shared, limit)

    def _shared_experience(self, drafter: str) -> SharedExperience:
        if drafter not in self._experience:
            costs = self._pool.model.pass_costs if self._pool.model else ()
            self._experience[drafter] = SharedExperience(CostModel(costs))
        return self._experience[drafter]
