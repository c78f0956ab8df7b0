"""Spells out tokens that have log-probabilities, and finds where in the text they begin.

Knows nothing about stops: a token that completes a stop string begins where it would have been
shown.
"""

from collections.abc import Sequence

from coordinator.detokenizer import Detokenizer
from coordinator.scored_tokens import LikelyToken, ScoredToken, SpelledToken
from coordinator.tokenizer import Tokenizer
from paceline.rounds import TokenLogprobs


class TokenSpeller:
    """Goes along one text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._num_characters = 0

    def spell(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]
    ) -> tuple[ScoredToken, ...]:
        """The next tokens of the text; `logprobs` has one for each."""
        pairs = zip(token_ids, logprobs, strict=True)
        return tuple(self._scored(token_id, known) for token_id, known in pairs)

    def _scored(self, token_id: int, logprobs: TokenLogprobs | None) -> ScoredToken:
        text_offset = self._num_characters
        self._num_characters += len(self._detokenizer.feed(token_id))
        if logprobs is None:
            return ScoredToken(self._spelled(token_id), None, (), text_offset)
        tops = zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True)
        top = tuple(LikelyToken(self._spelled(id), logprob) for id, logprob in tops)
        return ScoredToken(self._spelled(token_id), logprobs.logprob, top, text_offset)

    def _spelled(self, token_id: int) -> SpelledToken:
        written = self._tokenizer.token_bytes(token_id)
        if written:
            return SpelledToken(token_id, written.decode(errors="replace"), written)
        return SpelledToken(token_id, self._tokenizer.special_name(token_id), None)
