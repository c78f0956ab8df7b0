"""Rounds in, one batched pass at a time, committed tokens out.

`accept` places a round's span; `step` runs one pass over everything that waits: chunks of long
prompts, single tokens and drafts of all sequences together. For each sequence the pass gives one
row of logits behind its last committed token and one behind each draft, and the acceptance rule
walks them. A round without drafts is ordinary decoding, and so is one that goes on alone for
`max_new_tokens`. A round that scores commits nothing: its rows say what stands there already.

Plain Python: knows no network and no thread. Invariant: what is committed depends on the tokens
and settings of the sequence alone, never on drafts, chunks, batch mates or evictions.
"""

from dataclasses import dataclass
from time import perf_counter

from paceline.engine.grammar import Grammars
from paceline.engine.model import LanguageModel, PassSequence, Rows
from paceline.engine.pass_counts import PassCounts
from paceline.engine.sequences import EngineSequence, Held, SequenceTable
from paceline.errors import InvalidRequest
from paceline.rounds import (
    NO_DRAFTS,
    Features,
    RoundError,
    RoundErrorReason,
    VerifyResult,
    VerifyRound,
    WorkerLoad,
)
from paceline.token_tree import path_along
from target_service.acceptance import accept_drafts
from target_service.pending_round import PendingRound
from target_service.round_checks import misplaced, refusal, usable_drafts
from target_service.scoring import Scoring, committed_logprobs

MAX_COMPILE_WAIT_S = 0.01
"""How long to wait at a time for a grammar when there is nothing else to do."""

MAX_IDLE_S = 1.0
"""How long sequences that want nothing may keep others from running by the room they hold."""


@dataclass(frozen=True, slots=True)
class VerifierLimits:
    """Sizes that trade latency of others against throughput."""

    max_batch_tokens: int = 512
    """Rows of prefill in a pass; a quarter of it while other sequences decode."""
    max_speculative_tokens: int = 16
    """Drafts checked per sequence and pass; more are trimmed."""
    feature_window: int = 128
    """Most tokens whose features are sent at once, the last ones."""


@dataclass(frozen=True, slots=True)
class _Share:
    """What one pending round runs in a pass."""

    pending: PendingRound
    work: PassSequence


class Verifier:
    """The sequences of one target worker."""

    def __init__(
        self, model: LanguageModel, limits: VerifierLimits, grammars: Grammars | None = None
    ) -> None:
        """Without `grammars` no sequence can have one."""
        self._model = model
        self._limits = limits
        self._grammars = grammars
        self._table = SequenceTable(model.kv_cache)
        self._waiting: dict[str, PendingRound] = {}
        self.passes = PassCounts()
        self._stalled_since: float | None = None
        """Since when rounds have waited in vain for room."""

    def accept(self, round: VerifyRound, waited_s: float = 0.0) -> VerifyResult | None:
        """Place a round that has waited so long; an answer means that it will not get a pass."""
        self._waiting.pop(round.sequence_id, None)
        error = refusal(round, self._model.vocab_size, self.max_length)
        if error is not None:
            return VerifyResult(round.sequence_id, round.round, error=error)
        sequence = self._table.sync(round.sequence_id, round.span, round.settings)
        if isinstance(sequence, Held):
            return VerifyResult(round.sequence_id, round.round, held=sequence.num_tokens)
        settings, num_tokens = sequence.settings, len(sequence.log)
        error = misplaced(round, num_tokens, settings, has_grammars=self._grammars is not None)
        if error is not None:
            return VerifyResult(round.sequence_id, round.round, error=error)
        if self._grammars is not None:
            self._grammars.begin(settings.grammar)
        pending = self._pending(round, sequence)
        pending.arrived_at -= waited_s
        self._waiting[round.sequence_id] = pending
        return None

    def _pending(self, round: VerifyRound, sequence: EngineSequence) -> PendingRound:
        if round.score_from is not None:
            return PendingRound(sequence, round.round, NO_DRAFTS, (), 0, Scoring(round.score_from))
        num_left = sequence.settings.max_length - len(sequence.log)
        drafts, known = usable_drafts(
            round.drafts,
            max_drafts=self._limits.max_speculative_tokens,
            max_depth=num_left - 1,
            vocab_size=self._model.vocab_size,
        )
        num_remaining = min(max(round.max_new_tokens, 1), num_left)
        return PendingRound(
            sequence, round.round, drafts, known, num_remaining, features_from=round.features_from
        )

    def close(self, sequence_id: str) -> None:
        """The sequence has ended; its room is free at once."""
        self._waiting.pop(sequence_id, None)
        self._table.close(sequence_id)

    def is_waiting(self, sequence_id: str) -> bool:
        """Whether a round of the sequence waits for a pass."""
        return sequence_id in self._waiting

    @property
    def has_work(self) -> bool:
        """Whether a round waits for a pass."""
        return bool(self._waiting)

    @property
    def load(self) -> WorkerLoad:
        """The state of this worker."""
        return self._table.load(len(self._waiting))

    def step(self) -> list[VerifyResult] | None:
        """Run one pass and return what it committed; None when nothing can run yet."""
        shares = self._schedule() or self._schedule_compiled() or self._schedule_instead_of_idle()
        if not shares:
            return None
        self._stalled_since = None
        started = perf_counter()
        for share in shares:
            share.pending.queue_s = share.pending.queue_s or started - share.pending.arrived_at
        rows = self._model.forward([share.work for share in shares])
        for share in shares:
            work = share.work
            self._table.ran(share.pending.sequence, work.token_ids[: work.num_stem])
        committed = [
            (share, self._answer(share.pending, logits))
            for share, logits in zip(shares, rows, strict=True)
            if share.work.num_logits
        ]
        elapsed = perf_counter() - started
        num_rows = sum(len(share.work.token_ids) for share in shares)
        self.passes.ran(num_rows, len(shares), elapsed)
        for share in shares:
            share.pending.compute_s += elapsed
            share.pending.num_rows += len(share.work.token_ids)
        return [share.pending.timed(result, num_rows, len(shares)) for share, result in committed]

    def abandon(self, message: str) -> list[VerifyResult]:
        """The device failed: forget all sequences and answer every waiting round with an error."""
        error = RoundError(RoundErrorReason.INTERNAL, message)
        failed = [
            VerifyResult(id, pending.round, error=error) for id, pending in self._waiting.items()
        ]
        for sequence_id in self._table.sequence_ids():
            self.close(sequence_id)
        return failed

    def _schedule(self) -> list[_Share]:
        """Oldest first; decoding sequences always, prefill chunks while rows are left."""
        by_age = sorted(filter(self._is_ready, self._waiting.values()), key=_arrival)
        is_decoding = not all(p.is_prefill for p in by_age)
        prefill_rows = self._limits.max_batch_tokens // (4 if is_decoding else 1)
        shares: list[_Share] = []
        for pending in by_age:
            sequence = pending.sequence
            kept = [share.pending.sequence for share in shares]
            kv = self._table.reserve(sequence, pending.num_places, keep=kept)
            if kv is None:
                continue
            if pending.scoring is not None:
                self._table.rewind(sequence, pending.scoring.num_kept)
            work = pending.work(kv, prefill_rows)
            if pending.is_prefill:
                prefill_rows -= len(work.token_ids)
            if work.token_ids:
                shares.append(_Share(pending, work))
        return shares

    def _is_ready(self, pending: PendingRound) -> bool:
        """Whether the sequence's grammar, if it has one, is compiled."""
        return self._grammars is None or self._grammars.is_ready(pending.sequence.settings.grammar)

    def _schedule_compiled(self) -> list[_Share]:
        """Nothing could run: what waits for a grammar may soon."""
        waiting = [p.sequence.settings.grammar for p in self._waiting.values()]
        if self._grammars is None or not self._grammars.wait(waiting, MAX_COMPILE_WAIT_S):
            return []
        return self._schedule()

    def _schedule_instead_of_idle(self) -> list[_Share]:
        """Those who have the room are older, and idle: no rounds of theirs wait.

        That is soon over, unless their clients have stopped reading. Then they lose it.
        """
        now = perf_counter()
        self._stalled_since = self._stalled_since or now
        shares: list[_Share] = []
        busy = [pending.sequence for pending in filter(self._is_ready, self._waiting.values())]
        while busy and not shares and now - self._stalled_since >= MAX_IDLE_S:
            if not self._table.evict_idle(busy):
                break
            shares = self._schedule()
        return shares

    def _answer(self, pending: PendingRound, logits: Rows) -> VerifyResult:
        try:
            if pending.scoring is not None:
                return self._score(pending, pending.scoring, logits)
            return self._commit(pending, logits)
        except InvalidRequest as error:  # its settings or its grammar leave no token to choose
            return self._fail(pending, RoundErrorReason.INVALID_ARGUMENT, error)
        except FloatingPointError as error:  # not a number, in this sequence's rows
            return self._fail(pending, RoundErrorReason.INTERNAL, error)

    def _score(self, pending: PendingRound, scoring: Scoring, logits: Rows) -> VerifyResult:
        sequence = pending.sequence
        start = scoring.next_position
        logprobs = scoring.score(sequence, logits)
        last = scoring.next_position == len(sequence.log)
        if last:
            del self._waiting[sequence.sequence_id]
            self._table.commit(sequence, ())
        return VerifyResult(
            sequence.sequence_id, pending.round, start=start, logprobs=logprobs, last=last
        )

    def _commit(self, pending: PendingRound, logits: Rows) -> VerifyResult:
        sequence = pending.sequence
        start = len(sequence.log)
        settings, token_ids = sequence.settings, sequence.log.token_ids
        if self._grammars is not None:
            sequence.grammar = self._grammars.state(settings, sequence.grammar)
        drafts = pending.drafts
        acceptance = accept_drafts(logits, drafts, settings, token_ids, sequence.grammar)
        accepted = acceptance.token_ids[: acceptance.num_accepted_tokens]
        path = path_along(drafts, accepted)
        if drafts.parents:
            self._table.keep_path(sequence, path, accepted)
        self._table.commit(sequence, acceptance.token_ids)
        pending.num_remaining -= len(acceptance.token_ids)
        last = pending.num_remaining < 1 or sequence.has_ended
        if last:
            del self._waiting[sequence.sequence_id]
        else:
            pending.drafts, pending.known_token_ids = NO_DRAFTS, ()
        return VerifyResult(
            sequence_id=sequence.sequence_id,
            round=pending.round,
            start=start,
            token_ids=acceptance.token_ids,
            num_draft_tokens=len(drafts.token_ids),
            num_accepted_tokens=acceptance.num_accepted_tokens,
            last=last,
            logprobs=committed_logprobs(acceptance.token_ids, logits, path, settings),
            features=self._features(pending) if last else None,
        )

    def _features(self, pending: PendingRound) -> Features | None:
        """Of the tokens that have been run, which the newest one has not."""
        kv = pending.sequence.kv
        if pending.features_from is None or kv is None or not self._model.feature_size:
            return None
        start = max(pending.features_from, kv.num_tokens - self._limits.feature_window)
        if start >= kv.num_tokens:
            return None
        rows = self._model.features(kv, start, kv.num_tokens)
        return Features(start, len(rows), rows.astype("<f2").tobytes())

    def _fail(
        self, pending: PendingRound, reason: RoundErrorReason, error: Exception
    ) -> VerifyResult:
        """One sequence cannot go on; the others of the pass can."""
        sequence_id = pending.sequence.sequence_id
        del self._waiting[sequence_id]
        self._table.commit(pending.sequence, ())
        return VerifyResult(sequence_id, pending.round, error=RoundError(reason, str(error)))

    @property
    def max_length(self) -> int:
        """Longest sequence that this worker can hold, by context and by KV room."""
        return min(self._model.max_model_len, self._model.kv_cache.capacity)


def _arrival(pending: PendingRound) -> int:
    return pending.sequence.arrival
