"""Copies what followed the last tokens before: in the sequence, or in the tenant's earlier answers.

Needs no model. The idea is that of prompt lookup (arXiv 2304.04487) and SuffixDecoding (arXiv
2411.04975): how far it goes on follows from how long the matches are and how often they agree
(`continuation`). What is proposed can itself be copied from, so a loop goes on for as long as
asked.

Under the rules `rejection` and `block` only the sequence itself is looked at: an earlier answer
with the same seed was made from the very numbers that would judge the drafts.
"""

from array import array
from collections.abc import Iterator
from weakref import WeakKeyDictionary

from draft_service.drafters.continuation import Match, likely_next, match_length
from draft_service.drafters.earlier_answers import END, EarlierAnswers
from draft_service.drafters.token_index import TokenIndex
from draft_service.proposer import Proposal
from paceline.engine.sequences import EngineSequence, SequenceTable
from paceline.rounds import WorkerLoad

ORDERS = (3, 1)
"""Places in the sequence itself are found behind three equal tokens, then behind one. A single one
would do for most: the three find the best places of a long text, where one token stands often."""
MAX_PLACES = 16
"""Places that are looked at, for each order and text. 32 say the same."""
MAX_CHUNK = 8192
"""Tokens that are indexed in a step, some milliseconds; longer prompts take several."""
INDEXED_TOKENS = 2**20
"""Tokens of running sequences that are indexed at most, at some 80 bytes each."""
EARLIER_TOKENS = 2**19
"""Tokens of earlier answers that are kept at most, as many bytes each."""


class SuffixDrafter:
    """Looks the last tokens up in what stands before."""

    def __init__(
        self,
        table: SequenceTable | None = None,
        indexed_tokens: int = INDEXED_TOKENS,
        earlier_tokens: int = EARLIER_TOKENS,
    ) -> None:
        """`table`: the sequences, where another drafter has them already."""
        self._table = SequenceTable() if table is None else table
        self._table.on_close = self._remember
        self._indexed_tokens = indexed_tokens
        self._earlier = EarlierAnswers(earlier_tokens)
        self._indexes: WeakKeyDictionary[EngineSequence, TokenIndex] = WeakKeyDictionary()
        """The one that was used longest ago comes first."""

    @property
    def table(self) -> SequenceTable:
        """The sequences."""
        return self._table

    @property
    def num_indexed_tokens(self) -> int:
        """Tokens of running sequences that are indexed."""
        return sum(map(len, self._indexes.values()))

    def load(self, num_waiting: int) -> WorkerLoad:
        """The state of the worker."""
        return WorkerLoad(num_sequences=len(self._table), num_waiting=num_waiting)

    def extend(self, proposals: list[Proposal]) -> None:
        """Complete all proposals but those whose prompt is still to be indexed."""
        for proposal in self.indexed(proposals):
            self.add_continuation(proposal)
            proposal.is_done = True

    def indexed(self, proposals: list[Proposal]) -> list[Proposal]:
        """Those whose sequence is indexed; brings the indexes up to date, `MAX_CHUNK` in a step.

        Those that lack least come first, so that nobody waits for another's long prompt. Where
        there is no room for a sequence, its proposal is done.
        """
        by_lack = sorted(proposals, key=lambda p: len(p.sequence.log) - self._num_indexed(p))
        done: list[Proposal] = []
        num_left = MAX_CHUNK
        busy = {proposal.sequence for proposal in proposals}
        for proposal in by_lack:
            sequence = proposal.sequence
            index = self._indexes.pop(sequence, None) or TokenIndex(ORDERS)
            self._indexes[sequence] = index
            if not self._has_room(len(sequence.log) - len(index), busy):
                index.clear()
                proposal.is_done = True
                continue
            before = len(index)
            if index.follow(sequence.log.token_ids, num_left):
                done.append(proposal)
            num_left = max(num_left - max(len(index) - before, 0), 1)
        return done

    def add_continuation(self, proposal: Proposal, least_first: float = 0.0) -> int:
        """Add what is likely to follow the tokens and drafts of an indexed sequence.

        With `least_first` only where the first token is that likely. Returns the number of tokens.
        """
        text = proposal.sequence.log.token_ids + array("I", proposal.token_ids)
        matches = list(self._matches(proposal.sequence, text))
        num_before = len(proposal.token_ids)
        while True:
            num_added = len(proposal.token_ids) - num_before
            matches = [m for m in matches if m.place < len(m.text) and m.text[m.place] != END]
            if not matches:
                return num_added
            token_id, confidence = likely_next(matches)
            if confidence < least_first and num_added == 0:
                return 0
            if not proposal.is_worth(confidence):
                return num_added
            proposal.add(token_id, confidence)
            matches = [match for match in matches if match.text[match.place] == token_id]
            text.append(token_id)
            for match in matches:
                match.advance()

    def _matches(self, sequence: EngineSequence, text: "array[int]") -> Iterator[Match]:
        own = self._indexes[sequence]
        for place in own.places(text, MAX_PLACES):
            yield Match(text, place, match_length(text, place, text))
        if sequence.settings.samples_drafts:
            return
        for index in self._earlier.of(sequence.settings.cache_salt):
            for place in index.places(text, MAX_PLACES):
                length = match_length(index.token_ids, place, text)
                yield Match(index.token_ids, place, length)

    def _num_indexed(self, proposal: Proposal) -> int:
        index = self._indexes.get(proposal.sequence)
        return 0 if index is None else len(index)

    def _has_room(self, num_new: int, busy: set[EngineSequence]) -> bool:
        """Whether so many more tokens fit; takes the room of those that drafted longest ago."""
        num_over = self.num_indexed_tokens + num_new - self._indexed_tokens
        if num_over <= 0:
            return True
        for sequence, index in list(self._indexes.items()):
            if sequence not in busy:
                num_over -= len(index)
                del self._indexes[sequence]
            if num_over <= 0:
                return True
        return False

    def _remember(self, sequence: EngineSequence) -> None:
        """A sequence has ended: what it said may come again."""
        settings = sequence.settings
        self._earlier.add(settings.cache_salt, sequence.log.token_ids, settings.prompt_length)
