"""A sequence as its owner knows it, and its link to one worker.

The owner's token log is the truth; a worker holds a copy of a prefix of it. A link remembers how
much of it the worker is believed to hold, sends the rest as a span, and sends again from wherever
the worker says that it really stands. Plain Python: knows no network.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from paceline.rounds import (
    Drafts,
    Features,
    ProposeResult,
    ProposeRound,
    RoundError,
    RoundErrorReason,
    SequenceSettings,
    TokenSpan,
    VerifyResult,
    VerifyRound,
)
from paceline.token_log import TokenLog
from paceline.workers import WorkerLost

MAX_RESENDS = 8
"""A worker that still cannot place a span after this many tries counts as lost."""
STALL_TIMEOUT_S = 60.0
"""A target without a result for so long counts as lost. Dead ones are found sooner by keepalive;
this is for one that is alive and stuck. A full prefill on a slow CPU must fit."""


@dataclass(eq=False, slots=True)
class Sequence:
    """One choice of one request: its committed tokens, prompt included."""

    settings: SequenceSettings
    log: TokenLog
    num_prompt_tokens: int
    vocab_size: int = 0
    """The target's token ids are smaller than this; 0: not known."""
    sequence_id: str = field(default_factory=lambda: secrets.token_hex(16))
    _last_round: int = 0

    @property
    def num_left(self) -> int:
        """Tokens that may still be committed."""
        return self.settings.max_length - len(self.log)

    @property
    def num_new_tokens(self) -> int:
        """Tokens committed behind the prompt."""
        return len(self.log) - self.num_prompt_tokens

    @property
    def has_ended(self) -> bool:
        """Whether nothing may follow any more."""
        if self.num_left < 1:
            return True
        return self.num_new_tokens > 0 and self.log.token_ids[-1] in self.settings.stop_token_ids

    def next_round(self) -> int:
        """The number of a new round."""
        self._last_round += 1
        return self._last_round

    def commit(self, start: int, token_ids: "tuple[int, ...] | list[int]") -> tuple[int, ...]:
        """Append what is new of `token_ids`, which stand at position `start`; returns that part.

        Tokens that are already there are left out, so a doubled result changes nothing.
        """
        known = len(self.log) - start
        if known < 0 or not token_ids:
            return ()
        new = tuple(token_ids[known:])
        self.log.token_ids.extend(new)
        return new


class TargetWorker(Protocol):
    """What the loop needs of a target."""

    def results(self, round: VerifyRound, /) -> AsyncGenerator[VerifyResult, None]:
        """Send a round and yield its results; raises `WorkerLost`."""

    def close_sequence(self, sequence_id: str) -> None:
        """The sequence has ended."""


class DraftWorker(Protocol):
    """What the loop needs of a draft."""

    @property
    def address(self) -> str:
        """Where it is."""

    @property
    def drafter(self) -> str:
        """Its method; empty where it is not known."""

    @property
    def wants_features(self) -> bool:
        """Whether it is fed with the target's hidden states."""

    def results(self, round: ProposeRound, /) -> AsyncGenerator[ProposeResult, None]:
        """Send a round and yield its result; raises `WorkerLost`."""

    def close_sequence(self, sequence_id: str) -> None:
        """The sequence has ended."""


class RoundRefused(Exception):
    """A worker says that a round can never work; another worker would say the same."""

    def __init__(self, error: RoundError) -> None:
        super().__init__(error.message)
        self.error = error


class _Link:
    """How much of a sequence a worker is believed to hold."""

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self._known = 0

    def _span(self) -> tuple[TokenSpan, SequenceSettings | None]:
        span = self._sequence.log.span(min(self._known, len(self._sequence.log)))
        return span, self._sequence.settings if span.start == 0 else None

    def _must_resend(self, span: TokenSpan, held: int | None) -> bool:
        """Learn from an answer to `span`; the sequence may have grown since that was sent."""
        self._known = span.start + len(span.token_ids) if held is None else held
        return held is not None


class TargetLink(_Link):
    """A sequence at a target."""

    def __init__(self, sequence: Sequence, worker: TargetWorker) -> None:
        super().__init__(sequence)
        self.worker = worker

    async def verify(
        self,
        drafts: Drafts,
        max_new_tokens: int,
        *,
        features_from: int | None = None,
        score_from: int | None = None,
    ) -> AsyncGenerator[VerifyResult, None]:
        """One round; the caller commits each result before it asks for the next.

        With `features_from` the last result brings features. With `score_from` nothing is
        committed: the results are log-probabilities. Raises `WorkerLost`, and `RoundRefused` when
        no target would take the round.
        """
        for _ in range(MAX_RESENDS):
            span, settings = self._span()
            number = self._sequence.next_round()
            round = VerifyRound(
                sequence_id=self._sequence.sequence_id,
                round=number,
                span=span,
                drafts=drafts,
                max_new_tokens=max_new_tokens,
                settings=settings,
                score_from=score_from,
                features_from=features_from,
            )
            async with aclosing(self.worker.results(round)) as results:
                while True:
                    result = await _next_result(results)
                    if result.error is not None:
                        raise _lost_or_refused(result.error)
                    if self._must_resend(span, result.held):
                        break
                    self._check_logprobs(result, score_from)
                    yield result
                    self._known = len(self._sequence.log)
                    if result.last:
                        return
        raise WorkerLost("the target cannot place the sequence's tokens")

    def _check_logprobs(self, result: VerifyResult, score_from: int | None) -> None:
        """A worker that does not know of log-probabilities leaves them out, or commits tokens."""
        num_expected = len(result.token_ids)
        if score_from is not None:
            is_right = num_expected == 0 and len(result.logprobs) > 0
        elif self._sequence.settings.num_logprobs is not None:
            is_right = num_expected == len(result.logprobs)
        else:
            is_right = True
        if not is_right:
            raise WorkerLost("the target cannot give log-probabilities")

    def close(self) -> None:
        """Let the worker free the sequence."""
        self.worker.close_sequence(self._sequence.sequence_id)


class DraftLink(_Link):
    """A sequence at a draft."""

    def __init__(self, sequence: Sequence, worker: DraftWorker) -> None:
        super().__init__(sequence)
        self.worker = worker
        self.features_from = 0 if worker.wants_features else None
        """Where the features begin that the worker lacks; None when it wants none."""
        self._features: Features | None = None

    def feed(self, features: Features | None) -> None:
        """Features of the target, from `features_from` on; they go out with the next proposal."""
        if features is not None:
            self._features = features

    async def propose(
        self,
        num_speculative_tokens: int,
        min_confidence: float = 0.0,
        min_step_confidence: float = 0.0,
        max_steps: int = 0,
    ) -> ProposeResult:
        """One round; raises `WorkerLost` whenever there is no usable proposal."""
        is_first_try = True
        for _ in range(MAX_RESENDS):
            span, settings = self._span()
            number = self._sequence.next_round()
            round = ProposeRound(
                self._sequence.sequence_id,
                number,
                span,
                num_speculative_tokens,
                settings,
                features=self._features,
                min_confidence=min_confidence,
                min_step_confidence=min_step_confidence,
                max_steps=max_steps,
            )
            async with aclosing(self.worker.results(round)) as results:
                result = await anext(results)
            if result.error is not None:
                raise WorkerLost(result.error.message)
            if not self._must_resend(span, result.held):
                self._features, self.features_from = None, result.features_from
                if not is_first_try and self.features_from is not None:
                    self.features_from = 0  # it has lost those that it got before
                return result
            is_first_try = False
        raise WorkerLost("the draft cannot place the sequence's tokens")

    def close(self) -> None:
        """Let the worker free the sequence."""
        self.worker.close_sequence(self._sequence.sequence_id)


async def _next_result(results: AsyncGenerator[VerifyResult, None]) -> VerifyResult:
    try:
        async with asyncio.timeout(STALL_TIMEOUT_S):
            return await anext(results)
    except TimeoutError as error:
        raise WorkerLost(f"no result within {STALL_TIMEOUT_S:.0f} s") from error


def _lost_or_refused(error: RoundError) -> Exception:
    refusals = (RoundErrorReason.INVALID_ARGUMENT, RoundErrorReason.TOO_LONG)
    return RoundRefused(error) if error.reason in refusals else WorkerLost(error.message)
