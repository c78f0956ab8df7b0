"""A drafter that puts what the target will say into trees of anything else."""

from collections.abc import Callable
from random import Random

from plain_text import next_token
from trees import merged

from draft_service.proposer import Proposal
from paceline.engine.sequences import EngineSequence, SequenceTable
from paceline.engine.table_model import TableLaw
from paceline.rounds import Drafts, WorkerLoad
from paceline.token_tree import rule_fault

Following = Callable[[EngineSequence, int], list[int]]
"""Of a sequence the next tokens, up to so many."""


def by_the_law(law: TableLaw) -> Following:
    """What a table model says."""

    def following(sequence: EngineSequence, number: int) -> list[int]:
        known = [*sequence.log.token_ids]
        for _ in range(number):
            known.append(next_token(law, known, sequence.settings))
        return known[len(sequence.log) :]

    return following


class TreeDrafter:
    """Trees of so many tokens as are wanted; half of them is what really follows, more or less.

    A chain where the rule takes no tree.
    """

    def __init__(self, following: Following, vocab_size: int, seed: int = 0) -> None:
        self._following = following
        self._vocab_size = vocab_size
        self._random = Random(seed)
        self._table = SequenceTable()

    @property
    def table(self) -> SequenceTable:
        return self._table

    def load(self, num_waiting: int) -> WorkerLoad:
        return WorkerLoad(num_sequences=len(self._table), num_waiting=num_waiting)

    def extend(self, proposals: list[Proposal]) -> None:
        for proposal in proposals:
            tree = self._tree(proposal)
            proposal.token_ids = [*tree.token_ids]
            proposal.parents = [*tree.parents]
            proposal.is_done = True

    def _tree(self, proposal: Proposal) -> Drafts:
        number = proposal.num_wanted
        right = Drafts(self._following(proposal.sequence, self._random.randint(0, number)))
        parts = [self._others(right, 1 + number // 2), right, self._others(right, number)]
        self._random.shuffle(parts)
        tree = merged(*parts)
        tree = Drafts(tree.token_ids[:number], tree.parents[:number])
        return right if rule_fault(tree, proposal.sequence.settings) else tree

    def _others(self, right: Drafts, number: int) -> Drafts:
        """Anything, behind any of the right ones or the others."""
        tree = Drafts()
        for _ in range(number):
            way = [*right.token_ids[: self._random.randint(0, len(right.token_ids))]]
            way += self._random.choices(range(self._vocab_size), k=self._random.randint(1, 2))
            tree = merged(tree, Drafts(way))
        return tree
