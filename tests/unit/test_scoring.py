"""Log-probabilities from the verifier are the model's own, whatever was drafted, cut or evicted."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from sequence_owner import (
    GREEDY,
    LAW,
    PROMPT,
    SEEDED,
    VOCAB_SIZE,
    Owner,
    RecordingModel,
    new_verifier,
    widths,
)

from paceline.rounds import RoundErrorReason, SequenceSettings, TokenLogprobs, VerifyResult
from target_service import scoring
from target_service.verifier import Verifier

SCORED = replace(GREEDY, num_logprobs=3)
EVERYTHING = replace(
    SEEDED,
    num_logprobs=3,
    temperature=0.4,
    top_k=4,
    logit_bias=((2, 3.0), (5, -100.0)),
    prompt_length=len(PROMPT),
    presence_penalty=1.0,
    repetition_penalty=1.4,
)
LONG = [int(id) for id in np.random.default_rng(3).integers(0, VOCAB_SIZE, 150)]


def by_the_law(token_ids: Sequence[int], start: int, num_top: int) -> list[TokenLogprobs]:
    """Of the tokens from `start` on, each from scratch."""
    found = []
    for position in range(start, len(token_ids)):
        law = LAW.probabilities(token_ids[:position])
        ranked = sorted(range(VOCAB_SIZE), key=lambda token: (-law[token], token))[:num_top]
        found.append(
            TokenLogprobs(
                pytest.approx(math.log(law[token_ids[position]]), abs=1e-9),
                tuple(ranked),
                pytest.approx([math.log(law[token]) for token in ranked], abs=1e-9),
            )
        )
    return found


def scored(verifier: Verifier, owner: Owner, score_from: int, start: int = 0) -> list[VerifyResult]:
    """The results of one round that scores."""
    assert owner.send(start=start, score_from=score_from) is None
    results: list[VerifyResult] = []
    while not results or not results[-1].last:
        results += verifier.step() or []
    return results


def logprobs_of(results: list[VerifyResult]) -> list[TokenLogprobs]:
    assert [result.token_ids for result in results] == [()] * len(results)
    starts = [result.start for result in results]
    assert starts == [
        starts[0] + sum(len(result.logprobs) for result in results[:index])
        for index in range(len(results))
    ]
    return [logprobs for result in results for logprobs in result.logprobs]


@pytest.mark.parametrize("settings", [SCORED, EVERYTHING], ids=["plain", "with everything"])
def test_accepted_recovered_and_bonus_tokens_have_the_models_own(
    settings: SequenceSettings,
) -> None:
    owner = Owner(new_verifier(), settings=settings)
    text = [*PROMPT, *owner.expected]
    first = owner.ask(owner.expected[:3])
    assert (first.num_accepted_tokens, len(first.token_ids)) == (3, 4)
    wrong = [owner.expected[4], (owner.expected[5] + 1) % VOCAB_SIZE, owner.expected[6]]
    second = owner.ask(wrong, start=len(owner.log))
    assert (second.num_accepted_tokens, len(second.token_ids)) == (1, 2)
    expected = by_the_law(text[: len(owner.log)], len(PROMPT), 3)
    assert [*first.logprobs, *second.logprobs] == expected


def test_without_being_asked_for_there_are_none() -> None:
    assert Owner(new_verifier()).ask(max_new_tokens=2).logprobs == ()
    number_alone = Owner(new_verifier(), settings=replace(GREEDY, num_logprobs=0)).ask()
    assert [found.top_token_ids for found in number_alone.logprobs] == [()]


@pytest.mark.parametrize("score_from", [1, 2, 77, 149])
@pytest.mark.parametrize("chunk", [1, 33, 512])
@pytest.mark.parametrize("max_scored_rows", [5, 128])
def test_tokens_are_scored_by_rows_behind_the_ones_before_however_they_are_cut(
    score_from: int, chunk: int, max_scored_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "MAX_SCORED_ROWS", max_scored_rows)
    verifier = new_verifier(chunk)
    settings = replace(EVERYTHING, max_length=len(LONG))
    results = scored(verifier, Owner(verifier, LONG, settings), score_from)
    assert logprobs_of(results) == by_the_law(LONG, score_from, 3)
    assert sum(sum(width) for width in widths(verifier)) == len(LONG) - 1, "no token is run twice"


def test_what_is_in_the_cache_is_run_again_only_where_it_is_scored() -> None:
    verifier = new_verifier()
    settings = replace(SCORED, max_length=200)
    Owner(verifier, LONG, settings).ask()
    other = Owner(verifier, LONG, settings, "b")
    assert logprobs_of(scored(verifier, other, 100)) == by_the_law(LONG, 100, 3)
    assert widths(verifier)[1:] == [[50]]
    other.ask(start=len(LONG))
    assert widths(verifier)[2:] == [[1]], "the text goes on from what was scored"
    assert other.said == other.expected[:1]


def test_an_answer_is_scored_as_it_was_when_it_was_given() -> None:
    owner = Owner(new_verifier(), settings=EVERYTHING)
    given = [owner.ask(owner.expected[index : index + 2], start=0) for index in (0, 3)]
    again = Owner(new_verifier(7), [*PROMPT, *owner.said], EVERYTHING)
    found = logprobs_of(scored(again.verifier, again, len(PROMPT)))
    assert found == [logprobs for result in given for logprobs in result.logprobs]


def test_sequences_that_are_scored_and_others_share_a_pool_too_small_for_them() -> None:
    verifier = new_verifier(max_batch_tokens=8, num_cells=16, cell_size=4)
    prompts = [LONG[index : index + 30] for index in range(4)]
    owners = [
        Owner(verifier, prompt, replace(SCORED, max_length=40), str(index))
        for index, prompt in enumerate(prompts)
    ]
    found: list[list[TokenLogprobs]] = [[] for _ in owners]
    for index, owner in enumerate(owners):
        assert owner.send(score_from=3 if index % 2 else None, max_new_tokens=10) is None
    while verifier.has_work:
        for result in verifier.step() or []:
            index = int(result.sequence_id)
            found[index] += result.logprobs
            if index % 2 == 0:
                owners[index].hear(result)
            if result.last:
                verifier.close(result.sequence_id)
    for index, owner in enumerate(owners):
        start = 3 if index % 2 else 30
        assert found[index] == by_the_law([*owner.log.token_ids], start, 3)
    assert verifier.load.num_preemptions > 0


@pytest.mark.parametrize("score_from", [0, len(PROMPT), 99])
def test_a_position_where_nothing_can_be_scored_is_refused(score_from: int) -> None:
    answer = Owner(new_verifier(), settings=SCORED).send(score_from=score_from)
    assert answer is not None
    assert answer.error is not None
    assert answer.error.reason is RoundErrorReason.INVALID_ARGUMENT
    assert f"score_from: {score_from}" in answer.error.message


def test_rows_that_are_not_numbers_fail_alone() -> None:
    verifier = new_verifier()
    model = verifier._model
    assert isinstance(model, RecordingModel)
    model.poison = 9
    sick, owner = Owner(verifier, [9, 1, 2], sequence_id="b"), Owner(verifier)
    assert sick.send(score_from=1) is owner.send(score_from=1) is None
    failed, result = verifier.step() or []
    assert failed.error is not None
    assert failed.error.reason is RoundErrorReason.INTERNAL
    assert list(result.logprobs) == by_the_law(PROMPT, 1, 0)
    assert not verifier.has_work
