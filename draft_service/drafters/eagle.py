"""An EAGLE head fed with the target's hidden states, drafting a chain or a tree.

Rows made from the target's features are kept from round to round; those of drafts are dropped when
the next round begins, since by then the target has said what it computed there. Where the rows
begin does not matter to correctness: a worker that joins in mid-sequence drafts from the rows that
it gets. Without the row of every token but the last there is nothing to draft from.
"""

from array import array
from dataclasses import dataclass, field
from weakref import WeakSet

from draft_service.draft_tree import ROOT, DraftTree, NewTree
from draft_service.drafters.token_choice import TokenChoice
from draft_service.proposer import Proposal
from paceline.engine.eagle_head import EagleHead, HeadRows
from paceline.engine.feature_rows import FeatureRows
from paceline.engine.grammar import Grammars
from paceline.engine.head_kv import HeadKV
from paceline.engine.sequences import EngineSequence, SequenceTable
from paceline.rounds import WorkerLoad
from paceline.token_log import common_length

MAX_CHUNK = 512
"""Rows of one sequence in a step; more take several, so that nobody waits long for others."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class _HeadState:
    """What the head has read of a sequence: rows of true features, then rows of drafts."""

    kv: HeadKV
    token_ids: "array[int]" = field(default_factory=lambda: array("I"))
    """The token that was embedded in each row of true features."""
    last_step: int = 0
    """When it was last worked on."""

    @property
    def end(self) -> int:
        """Position of the first row behind those of true features."""
        return self.kv.start + len(self.token_ids)

    def truncate(self, num_rows: int) -> None:
        """Keep no more rows of true features than these, and no others."""
        del self.token_ids[num_rows:]
        self.kv.truncate(len(self.token_ids))


class EagleDrafter:
    """Runs a head one token per step, all sequences in one batch."""

    def __init__(
        self,
        head: EagleHead,
        grammars: Grammars | None = None,
        kv_capacity: int | None = None,
        new_tree: NewTree | None = None,
    ) -> None:
        """Without `grammars` it drafts as if there were none, which the target then rejects.

        `kv_capacity`: rows that all sequences may hold together; None for no limit. Without
        `new_tree` it drafts chains, and so it does where the rule takes nothing else.
        """
        self._head = head
        self._new_tree = new_tree
        self._choice = TokenChoice(grammars)
        self._kv_capacity = kv_capacity
        self._table = SequenceTable()
        self._states: WeakSet[_HeadState] = WeakSet()
        self._num_steps = 0
        self._num_preemptions = 0

    @property
    def table(self) -> SequenceTable:
        """The sequences."""
        return self._table

    def load(self, num_waiting: int) -> WorkerLoad:
        """The state of the worker."""
        return WorkerLoad(
            num_sequences=len(self._table),
            num_waiting=num_waiting,
            kv_used=sum(state.kv.num_rows for state in self._states),
            kv_capacity=self._kv_capacity or 0,
            num_preemptions=self._num_preemptions,
        )

    def extend(self, proposals: list[Proposal]) -> None:
        """One step for every proposal whose features are all read: a token more, or a level of the
        tree."""
        self._num_steps += 1
        running: list[tuple[Proposal, HeadRows]] = []
        work = [(proposal, self._rows(proposal)) for proposal in proposals]
        num_new = 0
        for proposal, rows in work:
            if (
                rows is None
                or not self._head.knows(rows.token_ids)
                or not self._has_room(num_new + len(rows.token_ids))
            ):
                _end(proposal)
            else:
                num_new += len(rows.token_ids)
                self._choice.begin(proposal.sequence)
                proposal.num_steps += 1
                running.append((proposal, rows))
        if not running:
            return
        results = self._head.forward([rows for _, rows in running])
        for (proposal, rows), logits in zip(running, results, strict=True):
            if rows.features is not None:
                proposal.sequence.drafter_state.token_ids.extend(rows.token_ids)
            if logits is None:
                continue
            if proposal.tree is None:
                self._choice.add(proposal, logits[-1])
            else:
                self._choice.grow(proposal, proposal.tree, logits)

    def _rows(self, proposal: Proposal) -> HeadRows | None:
        """What to run next; None without the features that it takes."""
        sequence, features = proposal.sequence, proposal.sequence.features
        state: _HeadState
        if proposal.token_ids:
            state = sequence.drafter_state
            state.last_step = self._num_steps
            return HeadRows(state.kv, proposal.token_ids[-1:], features=None, wants_logits=True)
        if proposal.tree is not None and ROOT not in proposal.tree.running:
            state = sequence.drafter_state
            state.last_step = self._num_steps
            return _tree_rows(state, proposal.tree)
        num_rows = len(sequence.log) - 1  # the last token's features are not computed yet
        if features is None or not features.start < num_rows <= features.end:
            return None
        if proposal.tree is None and self._new_tree and not sequence.settings.samples_drafts:
            proposal.tree = proposal.new_tree(self._new_tree)
        state = _valid_state(sequence, features)
        state.last_step = self._num_steps
        self._states.add(state)
        start, end = state.end, min(state.end + MAX_CHUNK, num_rows)
        return HeadRows(
            state.kv,
            sequence.log.token_ids[start + 1 : end + 1],
            features.rows[start - features.start : end - features.start],
            wants_logits=end == num_rows,
        )

    def _has_room(self, num_new: int) -> bool:
        """Whether so many more rows fit; takes the room of those that drafted longest ago."""
        if self._kv_capacity is None:
            return True
        num_over = sum(state.kv.num_rows for state in self._states) + num_new - self._kv_capacity
        idle = [s for s in self._states if s.last_step < self._num_steps and s.kv.num_rows]
        idle.sort(key=lambda state: state.last_step)
        if num_over > sum(state.kv.num_rows for state in idle):
            return False
        while num_over > 0:
            state = idle.pop(0)
            num_over -= state.kv.num_rows
            state.truncate(0)
            self._num_preemptions += 1
        return True


def _end(proposal: Proposal) -> None:
    """Nothing more can be run for it."""
    proposal.is_done = True
    if proposal.tree is not None:
        proposal.add_tree(proposal.tree.drafts())


def _tree_rows(state: _HeadState, tree: DraftTree) -> HeadRows:
    """The rows of the tokens that the tree wants to be run, each behind those on its way."""
    rows = {number: row for row, number in enumerate(tree.ran)}
    ways = [[rows[number] for number in tree.way(last)[:-1]] for last in tree.running]
    token_ids = tree.token_ids(tree.running)
    return HeadRows(state.kv, token_ids, features=None, wants_logits=True, ways=ways)


def _valid_state(sequence: EngineSequence, features: FeatureRows) -> _HeadState:
    """What is still right of what was read; at least one row of true features is left to run."""
    state: _HeadState | None = sequence.drafter_state
    if state is not None and state.kv.start <= features.start:
        following = sequence.log.token_ids[state.kv.start + 1 :]
        state.truncate(min(common_length(state.token_ids, following), len(following) - 1))
        if features.start <= state.end:
            return state
    sequence.drafter_state = state = _HeadState(HeadKV(features.start))
    return state
