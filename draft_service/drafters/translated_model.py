"""A smaller causal language model whose tokenizer is not the target's (arXiv 2502.05202).

The model follows each sequence in its own tokens (`Respelling`): a *twin* of the sequence, run by a
`ModelDrafter` of its own. Two ways lead back, and what is drafted wrongly is rejected in both:

- `SharedTokenChoice`: rows become rows over the target's tokens, as far as both have them, and each
  token is chosen as the target would;
- `TextChoice`: the model goes on with its most likely tokens, and the text that they write is
  proposed as the target's tokenizer splits it. That takes part in no noise and has no law, which is
  right under every acceptance rule, since such drafts depend on nothing but the sequence.
"""

import logging
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from draft_service.drafters.draft_model import ModelDrafter
from draft_service.drafters.token_choice import TokenChoice
from draft_service.proposer import Proposal
from draft_service.translation.respelling import Respelling, continuation
from draft_service.translation.shared_tokens import (
    MIN_AGREEMENT,
    SharedTokens,
    agreement,
    special_pairs,
)
from draft_service.translation.vocabulary import Vocabulary
from paceline.engine.grammar import Grammars
from paceline.engine.model import LanguageModel, Logits
from paceline.engine.sequences import EngineSequence, SequenceTable
from paceline.engine.tokenizer_files import TokenizerFile, first_vocabulary_difference
from paceline.errors import InvalidConfig
from paceline.rounds import DraftFault, TokenSpan, WorkerLoad
from paceline.token_log import TokenLog, common_length

logger = logging.getLogger(__name__)

MAX_STEPS_PER_TOKEN = 4
"""Draft tokens run for each token that is wanted of the target; a text that takes more is slow."""


@dataclass(eq=False, slots=True)
class Twin(Proposal):
    """A proposal of the draft's tokens behind the same sequence in the draft's spelling."""

    proposal: Proposal = field(kw_only=True)
    """In the target's tokens."""
    respelling: Respelling = field(kw_only=True)


class SharedTokenChoice:
    """Chooses among the tokens that both have."""

    def __init__(self, shared: SharedTokens, grammars: Grammars | None = None) -> None:
        """`grammars` are over the target's tokens."""
        self._shared = shared
        self._choice = TokenChoice(grammars)

    def begin(self, sequence: EngineSequence) -> None:
        """Its grammar may be compiled meanwhile."""
        self._choice.begin(sequence)

    def add(self, twin: Proposal, logits: Logits) -> None:
        """Choose the target's token, and give the twin the draft's."""
        assert isinstance(twin, Twin)
        proposal = twin.proposal
        num_known = len(proposal.token_ids)
        self._choice.add(proposal, self._shared.row(logits))
        for token_id in proposal.token_ids[num_known:]:
            twin.token_ids.append(self._shared.draft_id[token_id])
        twin.is_done = proposal.is_done


class TextChoice:
    """Writes on, and proposes what is written."""

    def __init__(
        self, target: Vocabulary, draft: Vocabulary, grammars: Grammars | None = None
    ) -> None:
        self._target = target
        self._draft = draft
        self._special = special_pairs(draft, target)
        self._choice = TokenChoice(grammars)

    def begin(self, sequence: EngineSequence) -> None:
        """Its grammar may be compiled meanwhile."""
        self._choice.begin(sequence)

    def add(self, twin: Proposal, logits: Logits) -> None:
        """Take the most likely token; propose when the text is long enough, or cannot go on."""
        assert isinstance(twin, Twin)
        token_id = int(logits.argmax())
        if not np.isfinite(logits[token_id]):
            twin.proposal.fault = DraftFault.NOT_A_NUMBER
            self.propose(twin)
            return
        twin.token_ids.append(token_id)
        num_steps, wanted = len(twin.token_ids), twin.proposal.num_wanted
        is_special = not self._draft.token_bytes[token_id]
        # The last token may yet become longer; one more shows that it did not.
        if (
            is_special
            or len(self._spelled(twin)) > wanted
            or num_steps > MAX_STEPS_PER_TOKEN * wanted
        ):
            self.propose(twin)

    def propose(self, twin: Twin) -> None:
        """Propose what has been written."""
        twin.is_done = True
        proposal, token_ids = twin.proposal, self._spelled(twin)
        last = twin.token_ids[-1] if twin.token_ids else -1
        if last in self._special:
            token_ids = [*token_ids, self._special[last]]
        elif len(token_ids) > 1:
            token_ids = token_ids[:-1]
        for token_id in self._choice.within_grammar(proposal.sequence, token_ids):
            if not proposal.is_done:
                proposal.add(token_id)
        proposal.is_done = True

    def _spelled(self, twin: Twin) -> Sequence[int]:
        text = self._draft.written(twin.token_ids)
        return continuation(self._target, twin.respelling.open_text, text)


class TranslatedDrafter:
    """Runs a model on the twins of sequences."""

    def __init__(
        self,
        model: LanguageModel,
        target: Vocabulary,
        draft: Vocabulary,
        choice: SharedTokenChoice | TextChoice,
    ) -> None:
        self._target, self._draft = target, draft
        self._choice = choice
        self._model = ModelDrafter(model, choice=choice)
        self._twins: dict[Proposal, Twin] = {}
        self._table = _Pairs(self._model.table)

    @property
    def table(self) -> SequenceTable:
        """The sequences, in the target's tokens."""
        return self._table

    def load(self, num_waiting: int) -> WorkerLoad:
        """The state of the worker."""
        return replace(self._model.load(num_waiting), num_sequences=len(self._table))

    def extend(self, proposals: list[Proposal]) -> None:
        """One step of the model for all."""
        twins = {
            proposal: self._twins.get(proposal) or self._twin(proposal) for proposal in proposals
        }
        self._model.extend([twin for twin in twins.values() if not twin.is_done])
        for proposal, twin in twins.items():
            proposal.num_steps = twin.num_steps
            if twin.is_done and not proposal.is_done:  # there is no room for more
                if isinstance(self._choice, TextChoice):
                    self._choice.propose(twin)
                proposal.is_done = True
        self._twins = {proposal: twin for proposal, twin in twins.items() if not proposal.is_done}

    def _twin(self, proposal: Proposal) -> Twin:
        sequence = proposal.sequence
        if sequence.drafter_state is None:
            sequence.drafter_state = Respelling(self._target, self._draft)
        respelling: Respelling = sequence.drafter_state
        token_ids = respelling.follow(sequence.log.token_ids)
        twin = self._table.twin(sequence, token_ids)
        return Twin(
            twin,
            proposal.num_wanted,
            is_done=not token_ids,
            proposal=proposal,
            respelling=respelling,
        )


class _Pairs(SequenceTable):
    """Sequences without KV, whose twins have it."""

    def __init__(self, twins: SequenceTable) -> None:
        super().__init__()
        self._twins = twins
        self._twin_of: dict[str, EngineSequence] = {}

    def twin(self, sequence: EngineSequence, token_ids: list[int]) -> EngineSequence:
        """The twin of a sequence, brought up to these tokens of the draft's."""
        sequence_id, settings = sequence.sequence_id, sequence.settings
        known = self._twin_of.get(sequence_id)
        if known is not None and known.settings is not settings:
            self._close_twin(sequence_id)
            known = None
        wanted = array("I", token_ids)
        start = 0 if known is None else common_length(known.log.token_ids, wanted)
        log = TokenLog() if known is None else known.log
        span = TokenSpan(start, log.prefix_hash(start), wanted[start:])
        placed = self._twins.sync(sequence_id, span, settings)
        assert isinstance(placed, EngineSequence), "it is known here what the twin holds"
        self._twin_of[sequence_id] = placed
        return placed

    def close(self, sequence_id: str) -> None:
        """The sequence has ended, and so has its twin."""
        super().close(sequence_id)
        self._close_twin(sequence_id)

    def _close_twin(self, sequence_id: str) -> None:
        self._twins.close(sequence_id)
        self._twin_of.pop(sequence_id, None)


def translated_drafter(
    model: LanguageModel,
    name: str,
    draft_files: Sequence[TokenizerFile],
    target_files: Sequence[TokenizerFile],
) -> TranslatedDrafter:
    """A drafter for a model with these tokenizer files, and targets with those; picks the way back.

    Raises:
        InvalidConfig: a tokenizer changes texts; names the first token in which the two differ.
    """
    difference = first_vocabulary_difference(target_files, draft_files)
    try:
        target = Vocabulary("the target", target_files)
        draft = Vocabulary(f"the draft model {name!r}", draft_files)
    except InvalidConfig as error:
        raise InvalidConfig(
            f"the draft model {name!r} has other tokens than the target ({difference}), and they "
            f"cannot be translated: {error.message}"
        ) from None
    grammars = Grammars.of_tokenizer(target_files, len(target))
    shared = SharedTokens(target, draft, model.vocab_size)
    choice: SharedTokenChoice | TextChoice
    share = agreement(target, draft)
    if share >= MIN_AGREEMENT:
        choice, way = SharedTokenChoice(shared, grammars), "token by token"
    else:
        choice, way = TextChoice(target, draft, grammars), "as text"
    logger.info(
        "the draft model %r has other tokens than the target (%s), of which it shares %d; drafts "
        "are translated %s (agreement %.3f)",
        *(name, difference, len(shared), way, share),
    )
    return TranslatedDrafter(model, target, draft, choice)
