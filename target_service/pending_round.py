"""A round that waits for passes, and what the next pass runs of it.

Plain Python: knows neither the model nor the other rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from paceline.engine.device_rows import choosable
from paceline.engine.kv_cache import KVSequence
from paceline.engine.model import PassSequence
from paceline.engine.sequences import EngineSequence
from paceline.rounds import Drafts, RoundTiming, SequenceSettings, VerifyResult
from paceline.token_tree import depths
from target_service.scoring import Scoring

MAX_DECODE_ROWS = 32
"""A sequence with no more tokens to run than this decodes; more are a prefill, cut in chunks."""


@dataclass(eq=False, slots=True)
class PendingRound:
    """A round that waits for its next pass."""

    sequence: EngineSequence
    round: int
    drafts: Drafts
    """A chain, whose last token may be one that the model does not know: it is rejected unseen; or
    a depth-first tree."""
    known_token_ids: Sequence[int]
    """The drafts that the model knows."""
    num_remaining: int
    """Tokens still to commit in this round; more than one lets the target go on alone."""
    scoring: Scoring | None = None
    """Set when the round commits nothing but scores what stands there."""
    features_from: int | None = None
    """Where the features begin that its last result brings; None for none."""
    arrived_at: float = field(default_factory=perf_counter)
    queue_s: float = 0.0
    compute_s: float = 0.0
    num_rows: int = 0

    @property
    def is_prefill(self) -> bool:
        """Whether its tokens are so many that they are cut in chunks."""
        return len(self.sequence.uncomputed()) > MAX_DECODE_ROWS

    @property
    def num_places(self) -> int:
        """How many tokens the sequence may have at most once the drafts are run."""
        tree = self.drafts.parents
        return len(self.sequence.log) + (max(depths(tree)) if tree else len(self.known_token_ids))

    def work(self, kv: KVSequence[Any], prefill_rows: int) -> PassSequence:
        """What to run, of a prefill no more tokens than that.

        No logits are needed of a chunk that the last committed token is not in.
        """
        if self.scoring is not None:
            max_rows = prefill_rows if self.is_prefill else MAX_DECODE_ROWS
            return PassSequence(kv, *self.scoring.work(self.sequence, max_rows))
        token_ids = [*self.sequence.uncomputed(), *self.known_token_ids]
        num_logits = 1 + len(self.known_token_ids)
        if self.is_prefill and len(token_ids) > prefill_rows:
            # The last committed token stays for the pass that runs the drafts.
            return PassSequence(kv, token_ids[: min(prefill_rows, len(token_ids) - num_logits)], 0)
        return PassSequence(kv, token_ids, num_logits, self.drafts.parents, self._choosable)

    @property
    def _choosable(self) -> SequenceSettings | None:
        """By which the model may choose; log-probabilities are read off the rows."""
        settings = self.sequence.settings
        return choosable(settings) if settings.num_logprobs is None else None

    def timed(self, result: VerifyResult, num_rows: int, num_sequences: int) -> VerifyResult:
        """The result of a pass of so many rows and sequences, with the times of this round."""
        timing = RoundTiming(
            queue_us=round(self.queue_s * 1e6),
            compute_us=round(self.compute_s * 1e6),
            pass_rows=num_rows,
            pass_sequences=num_sequences,
            num_rows=self.num_rows,
        )
        self.compute_s, self.num_rows = 0.0, 0
        return replace(result, timing=timing)
