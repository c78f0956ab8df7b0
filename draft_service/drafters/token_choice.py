"""From a row of logits to a proposed token, the same way for every drafter with a model.

Under the coupled rule the draft chooses with the target's noise (the same seed, choice and
position), so that both make the same choice wherever their laws are close (arXiv 2408.07978). Under
`rejection` and `block` it samples with noise of its own and tells from what.

How sure it is of a token is the share of the most likely one, at the temperature of the sequence: a
head that is sure is mostly right, and one choice made with the same noise is then mostly the same.
"""

import logging
from array import array
from collections.abc import Sequence

from draft_service.proposer import Proposal
from paceline.engine.draws import Draws
from paceline.engine.grammar import Grammars
from paceline.engine.model import Logits
from paceline.engine.sampling import choose_token, confidence, token_law
from paceline.engine.sequences import EngineSequence
from paceline.errors import InvalidRequest
from paceline.rounds import DraftFault

logger = logging.getLogger(__name__)


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
            proposal.is_done, proposal.fault = True, DraftFault.NOT_A_NUMBER
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

    def _follows_grammar(self, sequence: EngineSequence) -> bool:
        """False while the sequence's grammar is being compiled: a draft waits for nothing."""
        settings = sequence.settings
        if self._grammars is None:
            return True
        if not self._grammars.is_ready(settings.grammar):
            return False
        sequence.grammar = self._grammars.state(settings, sequence.grammar)
        return True


def _add_token(proposal: Proposal, logits: Logits) -> None:
    log, settings = proposal.sequence.log, proposal.sequence.settings
    context = log.token_ids + array("I", proposal.token_ids)
    position = len(context)
    grammar, allowed = proposal.sequence.grammar, None
    if grammar is not None and grammar.reach(context) == position:  # not behind a stop token
        allowed = grammar.allowed(context)
    if not settings.samples_drafts:
        sure = confidence(logits, settings, position, context, allowed)
        if proposal.is_worth(sure):
            proposal.add(choose_token(logits, settings, position, context, allowed), sure)
        return
    law = token_law(logits, settings, position, context, allowed)
    proposal.add_sampled(*Draws(settings, start=len(log)).draft(position, law))
