"""Medusa heads fed with the target's last hidden state (arXiv 2401.10774), a chain or a tree.

Each head's first choice, one behind the other, or a tree in which every level is a head's. One step
makes a whole proposal, and nothing is kept of a sequence but its features: a round needs the row of
the last token but one, the state in which the target has just chosen the last token, and no other.
"""

import numpy as np

from draft_service.draft_tree import NewTree
from draft_service.drafters.token_choice import TokenChoice
from draft_service.proposer import Proposal
from paceline.engine.grammar import Grammars
from paceline.engine.medusa_head import MedusaHead
from paceline.engine.model import Features, Logits
from paceline.engine.sequences import EngineSequence, SequenceTable
from paceline.rounds import WorkerLoad


class MedusaDrafter:
    """Runs all heads once, all sequences in one batch."""

    def __init__(
        self,
        head: MedusaHead,
        grammars: Grammars | None = None,
        new_tree: NewTree | None = None,
    ) -> None:
        """Without `grammars` it drafts as if there were none, which the target then rejects.

        Without `new_tree` it drafts chains, and so it does where the rule takes nothing else.
        """
        self._head = head
        self._new_tree = new_tree
        self._choice = TokenChoice(grammars)
        self._table = SequenceTable()

    @property
    def table(self) -> SequenceTable:
        """The sequences."""
        return self._table

    def load(self, num_waiting: int) -> WorkerLoad:
        """The state of the worker."""
        return WorkerLoad(num_sequences=len(self._table), num_waiting=num_waiting)

    def extend(self, proposals: list[Proposal]) -> None:
        """Complete all proposals; without its row a sequence gets none."""
        running: list[tuple[Proposal, Features]] = []
        for proposal in proposals:
            row = _newest_row(proposal.sequence)
            if row is not None:
                self._choice.begin(proposal.sequence)
                proposal.num_steps += 1
                proposal.comes_in_one_step()
                running.append((proposal, row))
        if running:
            num_wanted = max(proposal.num_wanted for proposal, _ in running)
            num_heads = min(num_wanted, self._head.num_heads)
            rows = self._head.forward(np.stack([row for _, row in running]), num_heads)
            for (proposal, _), heads in zip(running, rows, strict=True):
                if self._new_tree is not None and not proposal.sequence.settings.samples_drafts:
                    self._add_tree(proposal, self._new_tree, heads)
                    continue
                for logits in heads:
                    if not proposal.is_done:
                        self._choice.add(proposal, logits)
        for proposal in proposals:
            proposal.is_done = True

    def _add_tree(self, proposal: Proposal, new_tree: NewTree, heads: Logits) -> None:
        """What a head says stands behind every token of the level before."""
        tree = proposal.new_tree(new_tree)
        for logits in heads:
            if tree.running:
                self._choice.grow(proposal, tree, [logits] * len(tree.running))
        proposal.add_tree(tree.drafts())


def _newest_row(sequence: EngineSequence) -> Features | None:
    """The features `[feature_size]` of the last token but one; None when they are not there."""
    features, position = sequence.features, len(sequence.log) - 2
    if features is None or not features.start <= position < features.end:
        return None
    row: Features = features.rows[position - features.start]
    return row
