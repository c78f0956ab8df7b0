"""Every token has its own log-probability, whatever is lost, late or doubled on the way."""

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest
from fakes import Fault, FaultyConnection, FixedWorkers
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from lossless_runs import (
    LAW,
    PROMPT,
    SEEDED,
    VOCAB_SIZE,
    ScriptedSpeculation,
    draft,
    new_sequence,
    target,
)
from plain_text import plain_text
from virtual_time import run_virtually

from coordinator.decode_loop import decode
from coordinator.scoring import score
from coordinator.sequence import TargetWorker
from draft_service.drafters.draft_model import ModelDrafter
from paceline.engine.table_model import TableModel
from paceline.errors import Unavailable
from paceline.rounds import TokenLogprobs, VerifyResult, VerifyRound

FAULTS = st.lists(st.lists(st.sampled_from(Fault), max_size=3), min_size=1, max_size=2)
SCORED = replace(SEEDED, num_logprobs=2)
TEXT = [*PROMPT, *plain_text(LAW, PROMPT, SCORED)]


def is_by_the_law(found: Sequence[TokenLogprobs], start: int) -> bool:
    """Whether these belong to the tokens of `TEXT` from `start` on."""
    for position, logprobs in enumerate(found, start):
        law = LAW.probabilities(TEXT[:position])
        ranked = sorted(range(VOCAB_SIZE), key=lambda token: (-law[token], token))[:2]
        expected = [math.log(law[token]) for token in (TEXT[position], *ranked)]
        values = [logprobs.logprob, *logprobs.top_logprobs]
        if values != pytest.approx(expected, abs=1e-9) or list(logprobs.top_token_ids) != ranked:
            return False
    return True


@given(FAULTS, st.lists(st.sampled_from(Fault), max_size=6))
@examples(max_examples=40)
def test_the_tokens_of_an_answer_have_theirs(
    target_faults: list[list[Fault]], draft_faults: list[Fault]
) -> None:
    async def run() -> list[TokenLogprobs]:
        drafter = draft(
            lambda: ModelDrafter(TableModel(replace(LAW, disagreement=0.3))), draft_faults
        )
        workers = FixedWorkers(
            [FaultyConnection(target(LAW, faults)) for faults in target_faults],
            [FaultyConnection(drafter)],
        )
        sequence = new_sequence(SCORED)
        found: list[TokenLogprobs] = []
        rounds = decode(sequence, workers, ScriptedSpeculation(((4, 3, 1.0), (0, 3, 1.0))))
        async with aclosing(rounds):
            async for committed in rounds:
                assert len(committed.logprobs) == len(committed.token_ids)
                found += committed.logprobs
        assert list(sequence.log.token_ids) == TEXT
        return found

    found = run_virtually(run())
    assert len(found) == len(TEXT) - len(PROMPT)
    assert is_by_the_law(found, len(PROMPT))


@given(FAULTS, st.integers(1, len(TEXT)))
@examples(max_examples=40)
def test_tokens_that_stand_already_have_theirs(
    target_faults: list[list[Fault]], score_from: int
) -> None:
    async def run() -> list[TokenLogprobs]:
        workers = FixedWorkers(
            [FaultyConnection(target(LAW, faults)) for faults in target_faults], []
        )
        return await score(TEXT, score_from, SCORED, workers)

    found = run_virtually(run())
    assert len(found) == len(TEXT) - score_from
    assert is_by_the_law(found, score_from)


class Unknowing:
    """A target that has never heard of log-probabilities."""

    async def results(self, round: VerifyRound) -> AsyncGenerator[VerifyResult, None]:
        yield VerifyResult(
            round.sequence_id, round.round, start=round.span.start, token_ids=(1,), last=True
        )

    def close_sequence(self, sequence_id: str) -> None:
        """Nothing to do."""


class UnknowingWorkers:
    async def target(self, lost: TargetWorker | None) -> Unknowing:
        return Unknowing()

    def draft(self, lost: object) -> None:
        return None


def test_a_target_that_gives_none_is_not_taken_for_one_that_does() -> None:
    async def first_round() -> None:
        rounds = decode(new_sequence(SCORED), UnknowingWorkers(), ScriptedSpeculation(((0, 1, 1),)))
        async with aclosing(rounds):
            await anext(rounds)

    for asking in (first_round(), score(TEXT, 1, SCORED, UnknowingWorkers())):
        with pytest.raises(Unavailable, match="cannot give log-probabilities"):
            run_virtually(asking)
