"""Rounds in, one batched pass at a time, committed tokens out.

`accept` places a round's span; `step` runs one pass over everything that waits: chunks of long
prompts, single tokens and drafts of all sequences together. For each sequence the pass gives one
row of logits behind its last committed token and one behind each draft, and the acceptance rule
walks them. A round without drafts is ordinary decoding, and so is one that goes on alone for
`max_new_tokens`.

Plain Python: knows no network and no thread. Invariant: what is committed depends on the tokens
and settings of the sequence alone, never on drafts, chunks, batch mates or evictions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from paceline.engine.grammar import Grammars
from paceline.engine.model import LanguageModel, Logits, PassSequence
from paceline.engine.sequences import EngineSequence, Held, SequenceTable
from paceline.errors import InvalidRequest
from paceline.rounds import (
    NO_DRAFTS,
    Drafts,
    RoundError,
    RoundErrorReason,
    RoundTiming,
    VerifyResult,
    VerifyRound,
    WorkerLoad,
)
from target_service.acceptance import accept_drafts
from target_service.round_checks import misplaced, refusal, usable_drafts

MAX_DECODE_ROWS = 32
"""A sequence with no more tokens to run than this decodes; more are a prefill, cut in chunks."""

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


@dataclass(eq=False, slots=True)
class _Pending:
    """A round that waits for its next pass."""

    sequence: EngineSequence
    round: int
    drafts: Drafts
    """A chain. Its last token may be one that the model does not know: it is rejected unseen."""
    known_token_ids: Sequence[int]
    """The drafts that the model knows."""
    num_remaining: int
    """Tokens still to commit in this round; more than one lets the target go on alone."""
    arrived_at: float = field(default_factory=perf_counter)
    queue_s: float = 0.0
    compute_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Share:
    """What one pending round runs in a pass."""

    pending: _Pending
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
        self._waiting: dict[str, _Pending] = {}
        self._stalled_since: float | None = None
        """Since when rounds have waited in vain for room."""

    def accept(self, round: VerifyRound) -> VerifyResult | None:
        """Place a round; an answer at once means that it will not get a pass."""
        self._waiting.pop(round.sequence_id, None)
        error = refusal(round, self._model.vocab_size, self.max_length)
        if error is not None:
            return VerifyResult(round.sequence_id, round.round, error=error)
        sequence = self._table.sync(round.sequence_id, round.span, round.settings)
        if isinstance(sequence, Held):
            return VerifyResult(round.sequence_id, round.round, held=sequence.num_tokens)
        settings, num_tokens = sequence.settings, len(sequence.log)
        error = misplaced(num_tokens, settings, has_grammars=self._grammars is not None)
        if error is not None:
            return VerifyResult(round.sequence_id, round.round, error=error)
        if self._grammars is not None:
            self._grammars.begin(settings.grammar)
        num_left = settings.max_length - num_tokens
        most = min(self._limits.max_speculative_tokens, num_left - 1)
        drafts, known = usable_drafts(round.drafts, most, self._model.vocab_size)
        num_remaining = min(max(round.max_new_tokens, 1), num_left)
        self._waiting[round.sequence_id] = _Pending(
            sequence, round.round, drafts, known, num_remaining
        )
        return None

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
        cache = self._model.kv_cache
        return WorkerLoad(
            num_sequences=len(self._table),
            num_waiting=len(self._waiting),
            kv_used=cache.num_used,
            kv_capacity=cache.capacity,
            num_preemptions=self._table.num_preemptions,
        )

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
            self._table.ran(share.pending.sequence, share.work.token_ids)
        committed = [
            (share, self._commit(share.pending, logits))
            for share, logits in zip(shares, rows, strict=True)
            if share.work.num_logits
        ]
        elapsed = perf_counter() - started
        num_rows = sum(len(share.work.token_ids) for share in shares)
        for share in shares:
            share.pending.compute_s += elapsed
        return [
            _with_timing(share.pending, result, num_rows, len(shares))
            for share, result in committed
        ]

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
        is_decoding = not all(_is_prefill(p.sequence) for p in by_age)
        prefill_rows = self._limits.max_batch_tokens // (4 if is_decoding else 1)
        shares: list[_Share] = []
        for pending in by_age:
            sequence = pending.sequence
            kept = [share.pending.sequence for share in shares]
            num_tokens = len(sequence.log) + len(pending.known_token_ids)
            kv = self._table.reserve(sequence, num_tokens, keep=kept)
            if kv is None:
                continue
            token_ids = [*sequence.uncomputed(), *pending.known_token_ids]
            num_logits = 1 + len(pending.known_token_ids)
            if _is_prefill(sequence):
                if len(token_ids) > prefill_rows:
                    # The last committed token stays for the pass that runs the drafts.
                    chunk = min(prefill_rows, len(token_ids) - num_logits)
                    token_ids, num_logits = token_ids[:chunk], 0
                prefill_rows -= len(token_ids)
            if token_ids:
                shares.append(_Share(pending, PassSequence(kv, token_ids, num_logits)))
        return shares

    def _is_ready(self, pending: _Pending) -> bool:
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

    def _commit(self, pending: _Pending, logits: Logits) -> VerifyResult:
        sequence = pending.sequence
        start = len(sequence.log)
        settings, token_ids = sequence.settings, sequence.log.token_ids
        try:
            if self._grammars is not None:
                sequence.grammar = self._grammars.state(settings, sequence.grammar)
            acceptance = accept_drafts(
                logits, pending.drafts, settings, token_ids, sequence.grammar
            )
        except InvalidRequest as error:  # its settings or its grammar leave no token to choose
            return self._fail(pending, RoundErrorReason.INVALID_ARGUMENT, error)
        except FloatingPointError as error:  # not a number, in this sequence's rows
            return self._fail(pending, RoundErrorReason.INTERNAL, error)
        self._table.commit(sequence, acceptance.token_ids)
        pending.num_remaining -= len(acceptance.token_ids)
        last = pending.num_remaining < 1 or sequence.has_ended
        num_drafts = len(pending.drafts.token_ids)
        if last:
            del self._waiting[sequence.sequence_id]
        else:
            pending.drafts, pending.known_token_ids = NO_DRAFTS, ()
        return VerifyResult(
            sequence_id=sequence.sequence_id,
            round=pending.round,
            start=start,
            token_ids=acceptance.token_ids,
            num_draft_tokens=num_drafts,
            num_accepted_tokens=acceptance.num_accepted_tokens,
            last=last,
        )

    def _fail(self, pending: _Pending, reason: RoundErrorReason, error: Exception) -> VerifyResult:
        """One sequence cannot go on; the others of the pass can."""
        sequence_id = pending.sequence.sequence_id
        del self._waiting[sequence_id]
        self._table.commit(pending.sequence, ())
        return VerifyResult(sequence_id, pending.round, error=RoundError(reason, str(error)))

    @property
    def max_length(self) -> int:
        """Longest sequence that this worker can hold, by context and by KV room."""
        return min(self._model.max_model_len, self._model.kv_cache.capacity)


def _arrival(pending: _Pending) -> int:
    return pending.sequence.arrival


def _is_prefill(sequence: EngineSequence) -> bool:
    return len(sequence.uncomputed()) > MAX_DECODE_ROWS


def _with_timing(
    pending: _Pending, result: VerifyResult, num_rows: int, num_sequences: int
) -> VerifyResult:
    timing = RoundTiming(
        queue_us=round(pending.queue_s * 1e6),
        compute_us=round(pending.compute_s * 1e6),
        pass_rows=num_rows,
        pass_sequences=num_sequences,
    )
    pending.compute_s = 0.0
    return replace(result, timing=timing)
