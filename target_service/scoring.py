"""Log-probabilities of what a round commits, and of tokens that stand in a sequence already.

All are the model's own (`paceline.engine.logprobs`), by the row behind the tokens before. Knows
nothing about how tokens are chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.engine.device_rows import host_rows
from paceline.engine.logprobs import token_logprobs
from paceline.engine.model import Rows
from paceline.engine.sequences import EngineSequence
from paceline.rounds import SequenceSettings, TokenLogprobs

MAX_SCORED_ROWS = 128
"""Rows of one sequence and pass whose logits are kept: 25 MB of a vocabulary of 49,152 tokens."""


def committed_logprobs(
    token_ids: Sequence[int],
    logits: Rows,  # [1 + K, V], the rows behind the last committed token and behind each draft
    path: Sequence[int],  # the drafts that were accepted
    settings: SequenceSettings,
) -> tuple[TokenLogprobs, ...]:
    """Of the tokens of a round, each by the row behind the ones before it."""
    if settings.num_logprobs is None:
        return ()
    rows = [logits[0], *(logits[1 + index] for index in path)]
    return tuple(
        token_logprobs(row, token_id, settings.num_logprobs)
        for token_id, row in zip(token_ids, rows, strict=False)
    )


@dataclass(eq=False, slots=True)
class Scoring:
    """How far the tokens of a sequence have been scored."""

    next_position: int
    """Of the next token to score; at least 1, since nothing is before token 0."""

    @property
    def num_kept(self) -> int:
        """Tokens whose KV may be there already; the rows of all others are needed."""
        return self.next_position - 1

    def work(self, sequence: EngineSequence, max_rows: int) -> tuple[list[int], int]:
        """The tokens to run next, and how many of them, the last ones, need their logits."""
        num_unscored = max(self.num_kept - len(sequence.computed), 0)
        token_ids = sequence.uncomputed()[:-1]  # the last token's row says what follows it
        chunk = token_ids[: min(max_rows, num_unscored + MAX_SCORED_ROWS)]
        return list(chunk), max(len(chunk) - num_unscored, 0)

    def score(self, sequence: EngineSequence, logits: Rows) -> tuple[TokenLogprobs, ...]:
        """Of the next tokens, in the places of the rows [n, V]."""
        start = self.next_position
        self.next_position += len(logits)
        token_ids = sequence.log.token_ids[start : self.next_position]
        num_top = sequence.settings.num_logprobs or 0
        pairs = zip(token_ids, host_rows(logits), strict=True)
        return tuple(token_logprobs(row, token_id, num_top) for token_id, row in pairs)
