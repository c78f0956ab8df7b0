"""From a row of logits to a proposed token, the same way for every drafter with a model.

Under the coupled rule the draft chooses with the target's noise (the same seed, choice and
position), so that both make the same choice wherever their laws are close (arXiv 2408.07978). Under
`rejection` and `block` it samples with noise of its own and tells from what.

How sure it is of a token is the share of the most likely one, at the temperature of the sequence: a
head that is sure is mostly right, and one choice made with the same noise is then mostly the same.
"""

import logging
from array import array
from collections.abc import Iterable, Sequence

from draft_service.draft_tree import DraftTree
from draft_service.proposer import Proposal
from paceline.engine.device_rows import ChosenToken
from paceline.engine.draws import Draws
from paceline.engine.grammar import Grammars
from paceline.engine.logits_processing import TokenMask
from paceline.engine.model import Logits
from paceline.engine.sampling import (
    RankedToken,
    choose_token,
    confidence,
    ranked_tokens,
    token_law,
)
from paceline.engine.sequences import EngineSequence
from paceline.errors import InvalidRequest
from paceline.rounds import DraftFault

logger = logging.getLogger(__name__)

USUAL_CONFIDENCE = 0.4
"""Of a draft behind others, before its step is made. The shipped head's is 0.38 in the mean, and
hardly depends on how sure it was of those before (LOG.md)."""


class TokenChoice:
    """Adds tokens to proposals."""

    def __init__(self, grammars: Grammars | None = None) -> None:
        """Without `grammars` it drafts as if there were none, which the target then rejects."""
        self._grammars = grammars
        self._has_warned = False

    def begin(self, sequence: EngineSequence) -> None:
        """Let the sequence's grammar be compiled, while something else is computed."""
        if self._grammars is not None:
            self._grammars.begin(sequence.settings.grammar)

    def add(self, proposal: Proposal, logits: Logits) -> None:
        """Propose what a row says, in the way that the sequence's acceptance rule wants.

        The proposal is done when it says nothing: no token is left, or the row holds no numbers.
        """
        try:
            if self._follows_grammar(proposal.sequence):
                _add_token(proposal, logits)
            else:
                proposal.is_done = True
        except InvalidRequest:
            proposal.is_done = True
        except FloatingPointError as error:
            proposal.is_done = True
            self._note_fault(proposal, error)

    def _note_fault(self, proposal: Proposal, error: FloatingPointError) -> None:
        proposal.fault = DraftFault.NOT_A_NUMBER
        if not self._has_warned:
            logger.warning("a proposal ends: %s Further ones are not logged.", error)
        self._has_warned = True

    def within_grammar(self, sequence: EngineSequence, token_ids: Sequence[int]) -> Sequence[int]:
        """As many of the tokens as go on with the sequence's grammar, a stop token behind them
        included."""
        try:
            if not self._follows_grammar(sequence):
                return ()
        except InvalidRequest:
            return ()
        if sequence.grammar is None:
            return token_ids
        num_known = len(sequence.log)
        num_kept = (
            sequence.grammar.reach(sequence.log.token_ids + array("I", token_ids)) - num_known
        )
        following = token_ids[num_kept : num_kept + 1]
        may_end = following and following[0] in sequence.settings.stop_token_ids
        return token_ids[: num_kept + bool(may_end)]

    def grow(self, proposal: Proposal, tree: DraftTree, rows: Iterable[Logits]) -> None:
        """Let a tree grow by what the rows say that belong to the tokens it wants to be run.

        The proposal is done when no token is left that could be run, or no time to run it.
        """
        tree.grow(
            [
                self._ranked(proposal, tree.token_ids(tree.way(number)), row, tree.width)
                for number, row in zip(tree.running, rows, strict=True)
            ]
        )
        if not (tree.running and proposal.may_step):
            proposal.add_tree(tree.drafts())

    def _ranked(
        self, proposal: Proposal, way: Sequence[int], logits: Logits, count: int
    ) -> list[RankedToken]:
        """What a row says may follow the tokens of `way` behind the sequence, the likeliest first.

        With the noise of the place, so that the first is what the target chooses where both agree.
        None when the row says nothing.
        """
        sequence = proposal.sequence
        try:
            if not self._follows_grammar(sequence):
                return []
            context = sequence.log.token_ids + array("I", way)
            allowed = _allowed(sequence, context)
            settings = sequence.settings
            return ranked_tokens(logits, settings, len(context), count, context, allowed)
        except InvalidRequest:
            return []
        except FloatingPointError as error:
            self._note_fault(proposal, error)
            return []

    def _follows_grammar(self, sequence: EngineSequence) -> bool:
        """False while the sequence's grammar is being compiled: a draft waits for nothing."""
        settings = sequence.settings
        if self._grammars is None:
            return True
        if not self._grammars.is_ready(settings.grammar):
            return False
        sequence.grammar = self._grammars.state(settings, sequence.grammar)
        return True


def add_chosen(proposal: Proposal, chosen: ChosenToken) -> None:
    """Propose what a row says by the coupled rule."""
    proposal.add(chosen.token_id, chosen.confidence)
    if not proposal.is_done:
        proposal.is_worth_a_step(USUAL_CONFIDENCE)


def _add_token(proposal: Proposal, logits: Logits) -> None:
    log, settings = proposal.sequence.log, proposal.sequence.settings
    context = log.token_ids + array("I", proposal.token_ids)
    position = len(context)
    allowed = _allowed(proposal.sequence, context)
    if not settings.samples_drafts:
        sure = confidence(logits, settings, position, context, allowed)
        token_id = choose_token(logits, settings, position, context, allowed)
        add_chosen(proposal, ChosenToken(token_id, sure))
        return
    law = token_law(logits, settings, position, context, allowed)
    proposal.add_sampled(*Draws(settings, start=len(log)).draft(position, law))


def _allowed(sequence: EngineSequence, context: "array[int]") -> TokenMask | None:
    """The tokens that the sequence's grammar allows behind `context`; None for all."""
    grammar = sequence.grammar
    if grammar is None or grammar.reach(context) < len(context):  # behind a stop token
        return None
    return grammar.allowed(context)
