"""Rounds in, drafts out: the part that all drafters share.

Keeps the sequences up to date and hands those that want drafts to the drafter, all together and
one step at a time, so that a drafter with a model can run them in one batch. Plain Python: knows
no network and no thread.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from time import perf_counter
from typing import Protocol

from draft_service.draft_tree import DraftTree, NewTree
from paceline.engine.feature_rows import FeatureRows
from paceline.engine.pass_counts import PassCounts
from paceline.engine.sequences import EngineSequence, Held, SequenceTable
from paceline.engine.settings_checks import unusable
from paceline.rounds import (
    DraftFault,
    Drafts,
    ProposeResult,
    ProposeRound,
    RoundError,
    RoundErrorReason,
    RoundTiming,
    Support,
    WorkerLoad,
)
from paceline.token_tree import is_chain


@dataclass(eq=False, slots=True)
class Proposal:
    """Drafts being made for one sequence."""

    sequence: EngineSequence
    num_wanted: int
    token_ids: list[int] = field(default_factory=list)
    supports: list[Support] = field(default_factory=list)
    """One per token when they are sampled."""
    parents: list[int] = field(default_factory=list)
    """One per token when they are a tree (`paceline.token_tree`), the most likely ones first."""
    confidences: list[float] = field(default_factory=list)
    """One per token: how likely the drafter thinks it is that the token is accepted once the ones
    before it are, in a tree those on its way. Fewer where it does not say."""
    min_confidence: float = 0.0
    """No token is wanted whose acceptance, and that of all before it, is less likely than this."""
    min_step_confidence: float = 0.0
    """The same of a token that takes a step of the drafter's model, before the step is made."""
    max_steps: int = 0
    """Most steps of the drafter's model; 0 for as many as it takes."""
    tree: DraftTree | None = None
    """What its drafter lets grow, where it drafts trees."""
    num_steps: int = 0
    """Steps of its drafter's model that went into it."""
    is_done: bool = False
    fault: DraftFault | None = None
    """What is wrong where it ends."""

    def is_worth(self, confidence: float) -> bool:
        """Whether one more token of this confidence is wanted; where not, the proposal is done.

        Not asked about tokens that are sampled (`add_sampled`).
        """
        return self._is_likely(confidence, self.min_confidence)

    def is_worth_a_step(self, confidence: float) -> bool:
        """The same of a token that is still to be made, by the confidence to be expected."""
        if not self.may_step:
            self.is_done = True
        return self._is_likely(confidence, self.min_step_confidence)

    @property
    def may_step(self) -> bool:
        """Whether there is time for one more step of the drafter's model."""
        return not self.max_steps or self.num_steps < self.max_steps

    def _is_likely(self, confidence: float, least: float) -> bool:
        if prod(self.confidences) * confidence < least:
            self.is_done = True
        return not self.is_done

    def add(self, token_id: int, confidence: float | None = None) -> None:
        """Propose one more token; nothing is worth proposing behind a stop token."""
        self.token_ids.append(token_id)
        if confidence is not None:
            self.confidences.append(confidence)
        if not self.may_go_on:
            self.is_done = True

    @property
    def may_go_on(self) -> bool:
        """Whether one more token could be proposed behind those that are there: of a chain that is
        not sampled, is not as long as wanted and has not come to a stop token."""
        has_stopped = self.token_ids[-1:] and (
            self.token_ids[-1] in self.sequence.settings.stop_token_ids
        )
        is_whole = len(self.token_ids) >= self.num_wanted
        return not (has_stopped or is_whole or self.supports or self.parents)

    def comes_in_one_step(self) -> None:
        """What is proposed is all made by the step that runs: no token takes a further one."""
        self.min_step_confidence, self.max_steps = 0.0, 0

    def new_tree(self, new_tree: NewTree) -> DraftTree:
        """A tree for what is wanted."""
        stop_token_ids = self.sequence.settings.stop_token_ids
        return new_tree(self.num_wanted, stop_token_ids, self.min_step_confidence)

    def add_tree(self, drafts: Drafts) -> None:
        """Propose a whole tree."""
        self.token_ids = [*drafts.token_ids]
        self.parents = [] if is_chain(drafts.parents) else [*drafts.parents]
        self.confidences = [*drafts.confidences]
        self.is_done = True

    def add_sampled(self, token_id: int, support: Support) -> None:
        """Propose one more token that was sampled, and tell from what.

        Goes on behind a stop token, and however unsure the drafter is: a proposal that ended sooner
        for what it says would also be less often too late, and what is too late must not depend on
        what it says.
        """
        self.token_ids.append(token_id)
        self.supports.append(support)
        self.is_done = len(self.token_ids) >= self.num_wanted


class Drafter(Protocol):
    """A method of drafting.

    To add one: write a class with this interface in `draft_service/drafters/` and name it in
    `draft_service/drafters/registry.py`.
    """

    @property
    def table(self) -> SequenceTable:
        """The sequences that this drafter works on."""

    def extend(self, proposals: list[Proposal]) -> None:
        """Run one step: add at least one token to each proposal, or mark it as done."""

    def load(self, num_waiting: int) -> WorkerLoad:
        """The state of the worker."""


@dataclass(eq=False, slots=True)
class _Pending:
    round: int
    proposal: Proposal
    arrived_at: float
    started_at: float | None = None


class Proposer:
    """The sequences of one draft worker."""

    def __init__(
        self,
        drafter: Drafter,
        max_speculative_tokens: int,
        feature_size: int = 0,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`feature_size`: numbers per token of the target's hidden states that the drafter is fed
        with; 0 for none."""
        self._feature_size = feature_size
        self._drafter = drafter
        self._max_speculative_tokens = max_speculative_tokens
        self._clock = clock
        self._waiting: dict[str, _Pending] = {}
        self.passes = PassCounts()

    def accept(self, round: ProposeRound, waited_s: float = 0.0) -> ProposeResult | None:
        """Place a round that has waited so long; an answer means that it needs no step."""
        self._waiting.pop(round.sequence_id, None)
        error = unusable(round.settings) if round.settings is not None else None
        if error is not None:
            return ProposeResult(round.sequence_id, round.round, error=error)
        sequence = self._drafter.table.sync(round.sequence_id, round.span, round.settings)
        if isinstance(sequence, Held):
            return ProposeResult(round.sequence_id, round.round, held=sequence.num_tokens)
        if self._feature_size:
            try:
                self._feed(sequence, round)
            except ValueError as error:
                refused = RoundError(RoundErrorReason.INVALID_ARGUMENT, str(error))
                return ProposeResult(round.sequence_id, round.round, error=refused)
        # The target's own token needs the last place, so one less than the room can be accepted.
        room = sequence.settings.max_length - len(sequence.log) - 1
        num_wanted = min(round.num_speculative_tokens, self._max_speculative_tokens, room)
        proposal = Proposal(
            sequence,
            num_wanted,
            min_confidence=round.min_confidence,
            min_step_confidence=round.min_step_confidence,
            max_steps=round.max_steps,
            is_done=num_wanted < 1 or not len(sequence.log),
        )
        if proposal.is_done:
            features_from = _features_from(sequence)
            return ProposeResult(round.sequence_id, round.round, features_from=features_from)
        arrived_at = self._clock() - waited_s
        self._waiting[round.sequence_id] = _Pending(round.round, proposal, arrived_at)
        return None

    def _feed(self, sequence: EngineSequence, round: ProposeRound) -> None:
        if sequence.features is None:
            sequence.features = FeatureRows(self._feature_size)
        sequence.features.cut(round.span.start)
        if round.features is not None:
            sequence.features.add(round.features)

    def close(self, sequence_id: str) -> None:
        """The sequence has ended."""
        self._waiting.pop(sequence_id, None)
        self._drafter.table.close(sequence_id)

    def is_waiting(self, sequence_id: str) -> bool:
        """Whether a round of the sequence waits for a step."""
        return sequence_id in self._waiting

    @property
    def has_work(self) -> bool:
        """Whether a round waits for a step."""
        return bool(self._waiting)

    @property
    def load(self) -> WorkerLoad:
        """The state of this worker."""
        return self._drafter.load(len(self._waiting))

    def step(self) -> list[ProposeResult] | None:
        """Run one step for all that wait and return the proposals that are complete."""
        started = self._clock()
        for pending in self._waiting.values():
            pending.started_at = pending.started_at or started
        self._drafter.extend([pending.proposal for pending in self._waiting.values()])
        now = self._clock()
        self.passes.ran(0, len(self._waiting), now - started)
        done = {id: p for id, p in self._waiting.items() if p.proposal.is_done}
        for sequence_id in done:
            del self._waiting[sequence_id]
        return [_result(id, pending, len(done), now) for id, pending in done.items()]

    def abandon(self, message: str) -> list[ProposeResult]:
        """The drafter failed: forget all sequences and answer every waiting round with an error."""
        error = RoundError(RoundErrorReason.INTERNAL, message)
        failed = [ProposeResult(id, p.round, error=error) for id, p in self._waiting.items()]
        for sequence_id in self._drafter.table.sequence_ids():
            self.close(sequence_id)
        return failed


def _result(sequence_id: str, pending: _Pending, num_sequences: int, now: float) -> ProposeResult:
    started = pending.started_at or now
    proposal = pending.proposal
    timing = RoundTiming(
        queue_us=round((started - pending.arrived_at) * 1e6),
        compute_us=round((now - started) * 1e6),
        pass_sequences=num_sequences,
        num_steps=proposal.num_steps,
    )
    drafts = Drafts(
        tuple(proposal.token_ids),
        tuple(proposal.parents),
        tuple(proposal.supports),
        tuple(round(confidence, 2) for confidence in proposal.confidences),
    )
    return ProposeResult(
        sequence_id,
        pending.round,
        drafts=drafts,
        timing=timing,
        features_from=_features_from(proposal.sequence),
        fault=proposal.fault or _missing_features(proposal.sequence),
    )


def _missing_features(sequence: EngineSequence) -> DraftFault | None:
    """The newest token has none yet; all others should."""
    features = sequence.features
    if features is None or features.end >= len(sequence.log) - 1:
        return None
    return DraftFault.NO_FEATURES


def _features_from(sequence: EngineSequence) -> int | None:
    return None if sequence.features is None else sequence.features.end
