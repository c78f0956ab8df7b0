"""A smaller causal language model with the target's tokenizer.

With the target's own weights this is the method `self`, which accepts everything.
"""

import logging
from typing import Protocol

from draft_service.drafters.token_choice import TokenChoice, add_chosen
from draft_service.proposer import Proposal
from paceline.engine.device_rows import choosable, chosen_token
from paceline.engine.grammar import Grammars
from paceline.engine.model import LanguageModel, Logits, PassSequence
from paceline.engine.sequences import EngineSequence, SequenceTable
from paceline.rounds import WorkerLoad

logger = logging.getLogger(__name__)

MAX_CHUNK = 512
"""Rows of one sequence in a step; a longer prompt takes several."""


class Choice(Protocol):
    """Makes tokens of a model's rows."""

    def begin(self, sequence: EngineSequence) -> None:
        """A row of this sequence is being computed."""

    def add(self, proposal: Proposal, logits: Logits) -> None:
        """Add at least one token to the proposal, or mark it as done."""


class ModelDrafter:
    """Runs a model one token per step, all sequences in one batch."""

    def __init__(
        self,
        model: LanguageModel,
        grammars: Grammars | None = None,
        choice: Choice | None = None,
    ) -> None:
        """Without `grammars` it drafts as if there were none, which the target then rejects.

        `choice`: what makes tokens of rows instead of `TokenChoice`.
        """
        self._model = model
        self._choice = choice or TokenChoice(grammars)
        self._may_model_choose = choice is None
        self._table = SequenceTable(model.kv_cache)
        self._has_warned = False

    @property
    def table(self) -> SequenceTable:
        """The sequences."""
        return self._table

    def load(self, num_waiting: int) -> WorkerLoad:
        """The state of the worker."""
        return self._table.load(num_waiting)

    def extend(self, proposals: list[Proposal]) -> None:
        """One pass: a token more for every proposal whose prompt is computed."""
        running: list[tuple[Proposal, PassSequence]] = []
        for proposal in proposals:
            work = self._work(proposal, [p.sequence for p, _ in running])
            if work is None:
                proposal.is_done = True
            else:
                self._choice.begin(proposal.sequence)
                proposal.num_steps += 1
                running.append((proposal, work))
        if not running:
            return
        rows = self._model.forward([work for _, work in running])
        for (proposal, work), logits in zip(running, rows, strict=True):
            sequence = proposal.sequence
            self._table.ran(sequence, work.token_ids)
            chosen = chosen_token(logits, -1) if work.num_logits else None
            if chosen is not None:
                add_chosen(proposal, chosen)
            elif work.num_logits:
                self._choice.add(proposal, logits[-1])

    def _work(self, proposal: Proposal, kept: list[EngineSequence]) -> PassSequence | None:
        """What to run next; None without room, past the window, or behind an unknown token."""
        sequence = proposal.sequence
        num_tokens = len(sequence.log) + len(proposal.token_ids)
        if num_tokens > min(self._model.max_model_len, self._model.kv_cache.capacity):
            return None
        kv = self._table.reserve(sequence, num_tokens, keep=kept)
        if kv is None:
            return None
        num_drafts_computed = max(len(sequence.computed) - len(sequence.log), 0)
        token_ids = [*sequence.uncomputed(), *proposal.token_ids[num_drafts_computed:]]
        if max(token_ids) >= self._model.vocab_size:
            self._warn_of_unknown(max(token_ids))
            return None
        chunk = token_ids[:MAX_CHUNK]
        if len(chunk) < len(token_ids):
            return PassSequence(kv, chunk, 0)
        settings = choosable(sequence.settings) if self._may_model_choose else None
        return PassSequence(kv, chunk, 1, settings=settings, wants_confidence=True)

    def _warn_of_unknown(self, token_id: int) -> None:
        """Once: a token that begins every text, for one, means that there are never any drafts."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "no drafts behind the token %d: the draft model has rows for the tokens 0 to %d",
                *(token_id, self._model.vocab_size - 1),
            )
