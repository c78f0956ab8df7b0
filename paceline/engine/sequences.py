"""The sequences of one worker: their tokens, and the KV that a model holds for them.

A sequence is brought up to date by spans (prefix sync) and never trusted further than a span's
hash vouches. Its KV is a copy of part of its tokens and can be taken away at any time: when the
pool is full the newest sequence loses its KV, keeps its tokens, and is computed again once there is
room. Used by the target's verifier and by drafters that run a model.
"""

from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.engine.feature_rows import FeatureRows
from paceline.engine.grammar import GrammarState
from paceline.engine.kv_cache import KVCache, KVSequence
from paceline.rounds import SequenceSettings, TokenSpan, WorkerLoad
from paceline.token_log import TokenLog, common_length


@dataclass(eq=False, slots=True, weakref_slot=True)
class EngineSequence:
    """The tokens and settings of one sequence; `computed` are the tokens whose KV is in `kv`."""

    sequence_id: str
    settings: SequenceSettings
    arrival: int
    log: TokenLog = field(default_factory=TokenLog)
    kv: KVSequence[Any] | None = None
    computed: "array[int]" = field(default_factory=lambda: array("I"))
    grammar: GrammarState | None = None
    """Kept here for those who use grammars; it follows whatever tokens it is shown."""
    features: FeatureRows | None = None
    """Kept here for drafters that are fed with the target's hidden states."""
    drafter_state: Any = None
    """Whatever else its drafter keeps of it, which goes when the sequence does."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing may follow the last token: a stop token, or the last one allowed."""
        is_full = len(self.log) >= self.settings.max_length
        return is_full or self.log.token_ids[-1] in self.settings.stop_token_ids

    def uncomputed(self) -> "array[int]":
        """The tokens of the sequence whose KV is missing; on a target never empty."""
        return self.log.token_ids[len(self.computed) :]


@dataclass(frozen=True, slots=True)
class Held:
    """A span could not be placed; the worker holds so many tokens of the sequence."""

    num_tokens: int


class SequenceTable:
    """All sequences of a worker and, if it runs a model, their share of its KV cache."""

    def __init__(self, kv_cache: KVCache[Any] | None = None) -> None:
        self._kv_cache = kv_cache
        self._sequences: dict[str, EngineSequence] = {}
        self._num_arrived = 0
        self.num_preemptions = 0
        self.on_close: Callable[[EngineSequence], None] | None = None
        """Told about each sequence that has ended, while its tokens are still there."""

    def __len__(self) -> int:
        return len(self._sequences)

    def load(self, num_waiting: int) -> WorkerLoad:
        """The state of the worker, as far as it is one of its sequences."""
        cache = self._kv_cache
        return WorkerLoad(
            num_sequences=len(self._sequences),
            num_waiting=num_waiting,
            kv_used=cache.num_used if cache else 0,
            kv_capacity=cache.capacity if cache else 0,
            num_preemptions=self.num_preemptions,
        )

    def sequence_ids(self) -> list[str]:
        """All sequences, oldest first."""
        return list(self._sequences)

    def sync(
        self, sequence_id: str, span: TokenSpan, settings: SequenceSettings | None
    ) -> EngineSequence | Held:
        """Place a span; a sequence that starts here needs `settings`."""
        sequence = self._sequences.get(sequence_id)
        if sequence is None:
            if span.start > 0 or settings is None:
                return Held(0)
            self._num_arrived += 1
            sequence = EngineSequence(sequence_id, settings, self._num_arrived)
        known = len(sequence.log)
        if not sequence.log.sync(span):
            return Held(known if span.start > known else 0)
        if span.start == 0 and settings is not None:
            sequence.settings = settings
        self._sequences[sequence_id] = sequence
        self._keep_valid_kv(sequence, span.start)
        return sequence

    def close(self, sequence_id: str) -> None:
        """The sequence has ended; what is computed of it can still be found by content."""
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is not None:
            if self.on_close is not None:
                self.on_close(sequence)
            self._drop_kv(sequence)

    def reserve(
        self, sequence: EngineSequence, num_tokens: int, keep: Collection[EngineSequence] = ()
    ) -> KVSequence[Any] | None:
        """KV with room for `num_tokens` tokens, or None while older sequences need the room.

        Takes KV away from newer sequences, newest first, except from those in `keep`.
        """
        cache = self._cache()
        if sequence.kv is None:
            sequence.kv = cache.open(sequence.log.token_ids, sequence.settings.cache_salt)
            sequence.computed = sequence.log.token_ids[: sequence.kv.num_tokens]
        while not cache.reserve(sequence.kv, num_tokens):
            victim = self._newest_with_kv(keep)
            if victim is None or victim.arrival <= sequence.arrival:
                if sequence not in keep:
                    self._drop_kv(sequence)
                return None
            self._drop_kv(victim)
            self.num_preemptions += 1
        return sequence.kv

    def evict_idle(self, busy: Collection[EngineSequence]) -> bool:
        """Take the KV of the newest sequence that is not in `busy`; False when none has any."""
        victim = self._newest_with_kv(busy)
        if victim is None:
            return False
        self._drop_kv(victim)
        self.num_preemptions += 1
        return True

    def ran(self, sequence: EngineSequence, token_ids: Sequence[int]) -> None:
        """A pass has computed the KV of these tokens behind what was computed before."""
        sequence.computed.extend(token_ids)

    def keep_path(
        self, sequence: EngineSequence, path: Sequence[int], token_ids: Sequence[int]
    ) -> None:
        """Of the tree that a pass has run these tokens, at these indices, are to stay for now."""
        assert sequence.kv is not None
        self._cache().keep_path(sequence.kv, path)
        sequence.computed.extend(token_ids)

    def rewind(self, sequence: EngineSequence, num_tokens: int) -> None:
        """Forget KV behind the first `num_tokens` tokens: those are to be run again."""
        if sequence.kv is not None and len(sequence.computed) > num_tokens:
            self._cache().truncate(sequence.kv, num_tokens)
            del sequence.computed[num_tokens:]

    def commit(self, sequence: EngineSequence, token_ids: Sequence[int]) -> None:
        """Add tokens to the sequence; KV of tokens that were run and are not among them goes."""
        num_valid = len(sequence.log)
        sequence.log.token_ids.extend(token_ids)
        self._keep_valid_kv(sequence, num_valid)

    def _keep_valid_kv(self, sequence: EngineSequence, num_known_valid: int) -> None:
        """Cut the KV down to a true prefix of the sequence, and offer that for reuse."""
        if sequence.kv is None:
            return
        computed, token_ids = sequence.computed, sequence.log.token_ids
        known = min(num_known_valid, len(computed), len(token_ids))
        num_valid = known + common_length(computed[known:], token_ids[known:])
        # The last token is always left to run: its row says what comes next.
        num_valid = min(num_valid, max(len(token_ids) - 1, 0))
        self._cache().truncate(sequence.kv, num_valid)
        del computed[num_valid:]
        self._cache().register(sequence.kv, token_ids)

    def _newest_with_kv(self, keep: Collection[EngineSequence]) -> EngineSequence | None:
        holders = [s for s in self._sequences.values() if s.kv is not None and s not in keep]
        return max(holders, key=lambda s: s.arrival, default=None)

    def _drop_kv(self, sequence: EngineSequence) -> None:
        if sequence.kv is not None:
            self._cache().release(sequence.kv)
            sequence.kv = None
            sequence.computed = array("I")

    def _cache(self) -> KVCache[Any]:
        assert self._kv_cache is not None, "a worker without a model has no KV"
        return self._kv_cache
