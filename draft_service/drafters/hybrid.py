"""A suffix match where it is good enough, else a model or a head; or the one, then the other.

Matches cost nothing and are mostly right where there is a long one; a head always has something to
say, at the price of a step for each token. So a match that is sure enough is copied for as far as
it is. Elsewhere the model drafts, and as soon as a match that is sure enough follows what it has
drafted, that is copied, also where a step more of the model would not pay. Where the model has
nothing to say (its features are late, it is unsure, there is no room), the match is taken for what
it is worth. A model never goes on behind a copy: it would have to read that first.

What the model reads stays as it would be without the matches: an EAGLE head, for one, reads the
features of copied tokens in one step as soon as it is needed again.
"""

from draft_service.drafters.suffix import SuffixDrafter
from draft_service.proposer import Drafter, Proposal
from paceline.engine.sequences import SequenceTable
from paceline.rounds import WorkerLoad

SURE = 0.3
"""Confidence of the first token of a match that is good enough: that of two tokens that were
followed by it once. A head is right more often, but takes a step for each token (LOG.md)."""


class HybridDrafter:
    """Two drafters that work on the same sequences."""

    def __init__(self, model: Drafter, suffix: SuffixDrafter) -> None:
        """`suffix` has been made for the table of `model`."""
        assert suffix.table is model.table
        self._model = model
        self._suffix = suffix

    @property
    def table(self) -> SequenceTable:
        """The sequences."""
        return self._model.table

    def load(self, num_waiting: int) -> WorkerLoad:
        """The state of the worker."""
        return self._model.load(num_waiting)

    def extend(self, proposals: list[Proposal]) -> None:
        """One step of the model for all proposals that no match completes."""
        modelled: list[tuple[Proposal, int]] = []
        for proposal in self._suffix.indexed(proposals):
            # How long a sampled proposal takes must not depend on what it says.
            if not proposal.supports and self._suffix.add_continuation(proposal, SURE):
                proposal.is_done = True
            else:
                modelled.append((proposal, len(proposal.token_ids)))
        if not modelled:
            return
        self._model.extend([proposal for proposal, _ in modelled])
        for proposal, num_before in modelled:
            if proposal.is_done and proposal.may_go_on:
                has_nothing = len(proposal.token_ids) == num_before
                proposal.is_done = False
                self._suffix.add_continuation(proposal, 0.0 if has_nothing else SURE)
                proposal.is_done = True
