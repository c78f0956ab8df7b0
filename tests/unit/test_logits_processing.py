"""Bias, penalties and bans in every mixture with temperature and filters, against the reference.

The reference (`sampling_reference`) counts a token at a time; the product must choose the same
token, bit for bit, and have the same law.
"""

import itertools
import math
from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from sampling_reference import reference_law, reference_processed, reference_token

from paceline.engine.logits_processing import Logits, processed_logits
from paceline.engine.sampling import choose_token, token_law
from paceline.errors import InvalidRequest
from paceline.rounds import SequenceSettings

VOCAB_SIZE = 24
TEMPERATURES = (0.0, 1e-6, 1e-3, 0.7, 1.0, 2.0)
PLAIN = SequenceSettings(max_length=1000, seed=8)
PENALTIES: tuple[dict[str, float], ...] = (
    {},
    {"presence_penalty": 1.5},
    {"frequency_penalty": -0.5, "presence_penalty": 2.0},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7, "frequency_penalty": 2.0, "presence_penalty": -2.0},
)
BIASES: tuple[tuple[tuple[int, float], ...], ...] = ((), ((3, 4.0), (7, -100.0), (3, -1.5)))


def random_row(seed: int) -> Logits:
    rng = np.random.default_rng(seed)
    row = rng.standard_normal(VOCAB_SIZE) * 3
    return (row.round() if seed % 2 else row).astype(np.float32)  # every other one with ties


def random_context(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, length).tolist()


@pytest.mark.parametrize("penalties", PENALTIES, ids=str)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_all_settings_together_agree_with_the_reference(
    temperature: float, penalties: dict[str, float]
) -> None:
    grid = itertools.product(
        (0, 1, 5), (1.0, 0.9, 0.3), (0.0, 0.05, 1.0), BIASES, (0, 60), (0, 4, 40)
    )
    for index, (top_k, top_p, min_p, bias, min_length, prompt_length) in enumerate(grid):
        settings = replace(
            PLAIN,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=index,
            logit_bias=bias,
            stop_token_ids=(1, 5),
            min_length=min_length,
            prompt_length=prompt_length,
            **penalties,
        )
        row, context = random_row(index), random_context(index, 40 + index % 40)
        position = len(context)
        expected = reference_token(row, settings, position, context)
        assert choose_token(row, settings, position, array("I", context)) == expected, settings
        law = token_law(row, settings, position, array("I", context))
        expected_law = reference_law(row, settings, position, context)
        assert ((law > 0) == (expected_law > 0)).all(), settings
        np.testing.assert_allclose(law, expected_law, rtol=1e-12, atol=0)


NUMBERS = st.floats(-2.0, 2.0)
SETTINGS = st.builds(
    SequenceSettings,
    max_length=st.just(1000),
    temperature=st.one_of(st.just(0.0), st.floats(1e-6, 2.0)),
    top_k=st.integers(0, VOCAB_SIZE + 1),
    top_p=st.floats(1e-6, 1.0),
    min_p=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**64 - 1),
    logit_bias=st.lists(
        st.tuples(st.integers(0, VOCAB_SIZE + 2), st.floats(-99.0, 99.0)), max_size=4
    ).map(tuple),
    stop_token_ids=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=3).map(tuple),
    min_length=st.integers(0, 60),
    prompt_length=st.integers(0, 60),
    presence_penalty=NUMBERS,
    frequency_penalty=NUMBERS,
    repetition_penalty=st.floats(0.1, 3.0),
)


@given(SETTINGS, st.integers(0, 99), st.lists(st.integers(0, VOCAB_SIZE + 2), max_size=60))
@examples(max_examples=200, deadline=None)
def test_any_settings_change_the_row_as_the_reference_does(
    settings: SequenceSettings, seed: int, context: list[int]
) -> None:
    row = random_row(seed)
    position = len(context)
    processed = processed_logits(row, settings, position, context)
    assert processed.tolist() == reference_processed(row, settings, position, context)
    assert row.tolist() == random_row(seed).tolist(), "the row belongs to the caller"
    law = token_law(row, settings, position, context)
    assert law.sum() == pytest.approx(1.0, abs=1e-12)
    assert law[choose_token(row, settings, position, context)] > 0


def processed_ones(**penalties: float) -> list[float]:
    """What becomes of equal logits behind the prompt 1 2 2 and the answer 2 3 3."""
    settings = replace(PLAIN, prompt_length=3, **penalties)
    row = np.ones(5, np.float32)
    return processed_logits(row, settings, 6, [1, 2, 2, 2, 3, 3]).tolist()


def test_frequency_and_presence_count_behind_the_prompt_only() -> None:
    assert processed_ones(frequency_penalty=0.25) == [1.0, 1.0, 0.75, 0.5, 1.0]
    assert processed_ones(presence_penalty=0.25) == [1.0, 1.0, 0.75, 0.75, 1.0]
    assert processed_ones(presence_penalty=-1.0) == [1.0, 1.0, 2.0, 2.0, 1.0]


def test_repetition_counts_the_prompt_too_and_once() -> None:
    assert processed_ones(repetition_penalty=2.0) == [1.0, 0.5, 0.5, 0.5, 1.0]


def test_repetition_comes_before_what_is_subtracted_and_after_the_bias() -> None:
    penalties = {"repetition_penalty": 2.0, "frequency_penalty": 1.0, "presence_penalty": 1.0}
    assert processed_ones(**penalties) == [1.0, 0.5, -1.5, -2.5, 1.0]
    settings = replace(PLAIN, logit_bias=((0, -3.0), (1, 3.0)), repetition_penalty=2.0)
    assert processed_logits(np.ones(3, np.float32), settings, 2, [0, 1]).tolist() == [-4, 2, 1]


@pytest.mark.parametrize("penalty", [1e-3, 1.3, 50.0])
def test_a_banned_token_stays_banned_whatever_the_penalties(penalty: float) -> None:
    settings = replace(
        PLAIN,
        logit_bias=((0, -100.0),),
        stop_token_ids=(1,),
        min_length=9,
        presence_penalty=-2.0,
        frequency_penalty=-2.0,
        repetition_penalty=penalty,
    )
    assert processed_logits(np.ones(3, np.float32), settings, 2, [0, 1]).tolist()[:2] == [
        -math.inf,
        -math.inf,
    ]


def test_a_row_that_nothing_changes_is_handed_on_as_it_is() -> None:
    row = random_row(0)
    settings = replace(PLAIN, stop_token_ids=(1,), min_length=4)
    assert processed_logits(row, settings, 4, [1, 2, 3, 4]) is row


def test_the_law_of_temperature_0_is_one_token() -> None:
    law = token_law(np.array([1, 3, 2, 3], np.float32), PLAIN, 0, ())
    assert law.tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_law_is_refused_where_no_token_can_be_chosen(temperature: float) -> None:
    settings = replace(PLAIN, temperature=temperature, logit_bias=((0, -100.0), (1, -100.0)))
    with pytest.raises(InvalidRequest, match="ban every token"):
        token_law(np.zeros(2, np.float32), settings, 0, ())
    with pytest.raises(FloatingPointError, match="position 3"):
        token_law(np.array([0, np.nan], np.float32), replace(settings, logit_bias=()), 3, ())
