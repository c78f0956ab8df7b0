"""The rounds of one sequence: propose, verify, commit, yield.

A round without drafts is ordinary decoding: the first token, a missing or late draft, and a request
that does not speculate all take this one path. Whatever a worker lacks, lost or forgot is made good
by sending the span again (`coordinator.sequence`), to the same worker or another. The target alone
decides what is committed, so nothing that happens to a draft can change the text.

Plain Python: knows no network, no text and no store.
"""

import asyncio
from collections.abc import AsyncGenerator
from collections.abc import Sequence as Items
from contextlib import aclosing
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol

from coordinator.draft_checks import UNCHECKED, checked_drafts, went_unchecked
from coordinator.sequence import DraftLink, DraftWorker, Sequence, TargetLink, TargetWorker
from paceline.errors import Unavailable
from paceline.rounds import NO_DRAFTS, Drafts, Features, RoundTiming, TokenLogprobs
from paceline.token_tree import path_along
from paceline.workers import WorkerLost

MAX_LOSSES = 8
"""Targets that may be lost in a row without a token in between. A round that no target survives
must not go from one to the next for ever."""
PREDICTION = "prediction"
"""What drafts out of a client's prediction are known under, beside the names of drafters."""


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What the next round is to be."""

    num_speculative_tokens: int
    max_new_tokens: int
    """Tokens for which the target goes on alone when no draft was asked."""
    propose_timeout_s: float
    drafts: Drafts = NO_DRAFTS
    """The drafts where they are known already (a prediction of the client's): no draft is asked."""
    min_confidence: float = 0.0
    """No draft is wanted that is less likely to be accepted, with all before it, than this."""
    min_step_confidence: float = 0.0
    """The same of a draft that takes a step of the drafter's model."""
    max_steps: int = 0
    """Most steps of the drafter's model; 0 for as many as it takes."""


_WARM_UP = RoundPlan(1, 0, 0.0)
"""Lets a draft read a sequence."""


@dataclass(frozen=True, slots=True)
class ProposeOutcome:
    """How a proposal went."""

    drafts: Drafts
    elapsed_s: float
    timing: RoundTiming = RoundTiming()
    failure: str = ""
    """What is wrong with it, in a word or two; `drafts` are what can be used all the same."""
    drafter: str = ""
    """The method of the draft that was asked, or `PREDICTION`."""
    address: str = ""
    """Where that draft is."""

    @property
    def is_predicted(self) -> bool:
        """Whether the drafts came with the plan, out of the client's prediction."""
        return self.drafter == PREDICTION

    @property
    def is_missed(self) -> bool:
        """Whether there are no drafts, and should be."""
        return bool(self.failure) and not self.drafts.token_ids


@dataclass(frozen=True, slots=True)
class Committed:
    """One pass of the target: what it committed, and what that cost."""

    token_ids: tuple[int, ...]
    num_draft_tokens: int
    num_accepted_tokens: int
    timing: RoundTiming
    elapsed_s: float
    """From sending the round, or from the pass before in the same round, to this result."""
    propose: ProposeOutcome | None
    since_last_s: float
    """From the result before, or from the start of the sequence, to this result."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One per token when the settings ask for them."""

    def drafts_and_path(self) -> tuple[Items[int], Items[int]]:
        """The parents of the drafts that were checked, and which of them were accepted."""
        drafts = self.propose.drafts if self.propose else NO_DRAFTS
        if not drafts.parents:
            return range(-1, self.num_draft_tokens - 1), range(self.num_accepted_tokens)
        accepted = self.token_ids[: self.num_accepted_tokens]
        return drafts.parents[: self.num_draft_tokens], path_along(drafts, accepted)

    @property
    def overhead_s(self) -> float:
        """What coordinator, wire and waiting added to the computing of target and draft."""
        propose_us = self.propose.timing.compute_us if self.propose else 0
        return self.since_last_s - (self.timing.compute_us + propose_us) / 1e6


class Speculation(Protocol):
    """Decides how many drafts the next round gets, and learns from each."""

    def plan(self, sequence: Sequence) -> RoundPlan:
        """The next round."""

    def choose(self, sequence: Sequence, drafts: Drafts) -> Drafts:
        """Which of the proposed drafts are worth verifying: all, or the first ones."""

    def observe(self, sequence: Sequence, committed: Committed) -> None:
        """A pass of the target has come back."""


class Workers(Protocol):
    """Where a sequence runs."""

    async def target(self, lost: TargetWorker | None) -> TargetWorker:
        """A target, another one than `lost` if there is one; raises `Unavailable` without any."""

    def draft(self, lost: DraftWorker | None) -> DraftWorker | None:
        """A draft, another one than `lost` if there is one; None without any."""


async def decode(
    sequence: Sequence, workers: Workers, speculation: Speculation
) -> AsyncGenerator[Committed, None]:
    """Yield each pass's committed tokens until the sequence ends; closing it frees the workers.

    Raises `Unavailable` without a target, and `RoundRefused` when no target would take the round.
    """
    target = TargetLink(sequence, await workers.target(None))
    drafting = _Drafting(sequence, workers)
    num_losses = 0
    last = perf_counter()
    try:
        while not sequence.has_ended:
            plan = speculation.plan(sequence)
            proposal = await drafting.propose(plan)
            drafts = speculation.choose(sequence, proposal.drafts) if proposal else NO_DRAFTS
            max_new_tokens = 1 if proposal else plan.max_new_tokens
            asked = target.verify(drafts, max_new_tokens, features_from=drafting.features_from)
            try:
                async with aclosing(asked) as results:
                    sent = perf_counter()
                    async for result in results:
                        now = perf_counter()
                        if proposal and went_unchecked(drafts, result, sequence):
                            proposal = replace(proposal, drafts=NO_DRAFTS, failure=UNCHECKED)
                        token_ids = sequence.commit(result.start, tuple(result.token_ids))
                        num_known = len(result.token_ids) - len(token_ids)
                        committed = Committed(
                            token_ids=token_ids,
                            num_draft_tokens=result.num_draft_tokens,
                            num_accepted_tokens=result.num_accepted_tokens,
                            timing=result.timing,
                            elapsed_s=now - sent,
                            propose=proposal,
                            since_last_s=now - last,
                            logprobs=tuple(result.logprobs[num_known:]),
                        )
                        sent, last, proposal = now, now, None
                        num_losses = 0 if committed.token_ids else num_losses
                        drafting.feed(result.features)
                        speculation.observe(sequence, committed)
                        yield committed
            except WorkerLost as loss:
                num_losses += 1
                target = await another_target(sequence, workers, target, num_losses, loss)
    finally:
        target.close()
        drafting.close()


async def another_target(
    sequence: Sequence, workers: Workers, lost: TargetLink, num_losses: int, loss: WorkerLost
) -> TargetLink:
    """The sequence at another target, if there is one; raises `Unavailable` after many losses."""
    lost.close()
    if num_losses > MAX_LOSSES:
        message = f"{num_losses} target workers in a row were lost, the last one: {loss}"
        raise Unavailable(message) from loss
    return TargetLink(sequence, await workers.target(lost.worker))


class _Drafting:
    """The draft side of the loop. Never fails: without a proposal in time there is none."""

    def __init__(self, sequence: Sequence, workers: Workers) -> None:
        self._sequence = sequence
        self._workers = workers
        self._link: DraftLink | None = None
        self._warm_up: asyncio.Task[ProposeOutcome] | None = None

    @property
    def features_from(self) -> int | None:
        """Where the features begin that the draft lacks; None when none are wanted."""
        return None if self._link is None else self._link.features_from

    def feed(self, features: Features | None) -> None:
        """What the target was asked for by `features_from`."""
        if self._link is not None:
            self._link.feed(features)

    async def propose(self, plan: RoundPlan) -> ProposeOutcome | None:
        """Drafts for the next round; None when none are asked for or nobody can make any.

        The first token never waits: the draft gets the prompt at the same time as the target.
        """
        if plan.num_speculative_tokens < 1:
            return None
        if self._link is None:
            self._begin(self._workers.draft(None))
        if plan.drafts.token_ids:
            return ProposeOutcome(plan.drafts, 0.0, drafter=PREDICTION)
        if self._link is None:
            return None
        if self._sequence.num_new_tokens == 0:
            return None
        sent = perf_counter()
        try:
            async with asyncio.timeout(plan.propose_timeout_s):
                if self._warm_up is not None:
                    await asyncio.shield(self._warm_up)
                    self._warm_up = None
                outcome = await self._ask(self._link, plan)
        except TimeoutError:
            elapsed_s, worker = perf_counter() - sent, self._link.worker
            outcome = ProposeOutcome(
                NO_DRAFTS,
                elapsed_s,
                failure="timeout",
                drafter=worker.drafter,
                address=worker.address,
            )
        if outcome.failure:
            self._replace()
        return outcome

    def _begin(self, worker: DraftWorker | None) -> None:
        """Let a draft read the sequence so far, while the target does something else.

        One that is fed with features could do nothing with it before it has some.
        """
        if worker is not None:
            self._link = DraftLink(self._sequence, worker)
            if not worker.wants_features:
                self._warm_up = asyncio.create_task(self._ask(self._link, _WARM_UP))

    async def _ask(self, link: DraftLink, plan: RoundPlan) -> ProposeOutcome:
        sent, asked = perf_counter(), (link.worker.drafter, link.worker.address)
        try:
            result = await link.propose(
                plan.num_speculative_tokens,
                plan.min_confidence,
                plan.min_step_confidence,
                plan.max_steps,
            )
        except WorkerLost:
            return ProposeOutcome(NO_DRAFTS, perf_counter() - sent, RoundTiming(), "lost", *asked)
        drafts, failure = checked_drafts(result, plan.num_speculative_tokens, self._sequence)
        return ProposeOutcome(drafts, perf_counter() - sent, result.timing, failure, *asked)

    def close(self) -> None:
        """Let the worker free the sequence."""
        if self._warm_up is not None:
            self._warm_up.cancel()
        if self._link is not None:
            self._link.close()

    def _replace(self) -> None:
        """Another draft from the next round on, if there is one; else the same one again."""
        assert self._link is not None
        worker = self._workers.draft(self._link.worker)
        if worker is not self._link.worker:
            self.close()
            self._link, self._warm_up = None, None
            self._begin(worker)
