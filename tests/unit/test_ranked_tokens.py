"""Ranked tokens: the first is the one that is chosen, the others are the next ones by the book."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling_reference import (
    BANNED,
    reference_kept,
    reference_processed,
    reference_scaled,
    reference_token,
)

from paceline.engine.model import Logits
from paceline.engine.noise import gumbel
from paceline.engine.sampling import choose_token, confidence, ranked_tokens
from paceline.errors import InvalidRequest
from paceline.rounds import SequenceSettings

CONTEXT = [1, 2, 2, 7]
SETTINGS = st.builds(
    SequenceSettings,
    max_length=st.just(99),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 3, 20]),
    top_p=st.sampled_from([1.0, 0.7]),
    min_p=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**64 - 1),
    logit_bias=st.sampled_from([(), ((3, 4.0), (5, -100.0))]),
    prompt_length=st.just(2),
    frequency_penalty=st.sampled_from([0.0, 0.8]),
)


def row(seed: int, size: int, ties: bool) -> Logits:
    values = np.random.default_rng(seed).normal(0, 2, size)
    return (values.round() if ties else values).astype(np.float32)


def by_the_book(logits: Logits, settings: SequenceSettings, count: int) -> list[int]:
    processed = reference_processed(logits, settings, len(CONTEXT), CONTEXT)
    scores = dict(enumerate(processed))
    if settings.temperature > 0.0:
        scaled = reference_scaled(processed, settings)
        noise = gumbel(settings.seed, settings.choice, len(CONTEXT), np.arange(len(logits)))
        scores = {id: scaled[id] + noise[id] for id in reference_kept(scaled, settings)}
    allowed = [id for id in scores if processed[id] > BANNED]
    return sorted(allowed, key=lambda id: (-scores[id], id))[:count]


@given(
    SETTINGS, st.integers(0, 99), st.sampled_from([8, 40, 700]), st.booleans(), st.integers(1, 9)
)
def test_they_are_ranked_as_by_the_book(
    settings: SequenceSettings, seed: int, size: int, ties: bool, count: int
) -> None:
    logits = row(seed, size, ties)
    ranked = ranked_tokens(logits, settings, len(CONTEXT), count, CONTEXT)
    assert [token.token_id for token in ranked] == by_the_book(logits, settings, count)
    chosen = choose_token(logits, settings, len(CONTEXT), CONTEXT)
    assert ranked[0].token_id == chosen == reference_token(logits, settings, 4, CONTEXT)
    shares = [token.share for token in ranked]
    assert shares == sorted(shares, reverse=True)
    assert 0.0 < sum(shares) <= 1.0 + 1e-9


def test_greedy_shares_are_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.125, 0.25, 0.125], np.float32))
    ranked = ranked_tokens(logits, SequenceSettings(max_length=9), 2, 3, [0, 1])
    assert [token.token_id for token in ranked] == [0, 2, 1]
    assert [token.share for token in ranked] == pytest.approx([0.5, 0.25, 0.125])


def test_the_noise_of_the_place_decides_about_shares_too() -> None:
    logits = np.zeros(50, np.float32)
    settings = SequenceSettings(max_length=9, temperature=1.0, seed=4)
    for position in range(20):
        first, second = ranked_tokens(logits, settings, position, 2, [])
        noise = gumbel(4, 0, position, np.arange(50))
        gap = noise[first.token_id] - noise[second.token_id]
        assert math.log(first.share / second.share) == pytest.approx(gap)


def test_only_what_a_grammar_allows_is_ranked() -> None:
    allowed = np.zeros(40, np.bool_)
    allowed[[3, 8]] = True
    for temperature in (0.0, 1.0):
        settings = SequenceSettings(max_length=9, temperature=temperature)
        ranked = ranked_tokens(row(0, 40, ties=False), settings, 2, 5, [0, 1], allowed)
        assert sorted(token.token_id for token in ranked) == [3, 8]
    with pytest.raises(InvalidRequest):
        ranked_tokens(row(0, 40, ties=False), settings, 2, 5, [0, 1], np.zeros(40, np.bool_))
    with pytest.raises(FloatingPointError):
        ranked_tokens(np.full(4, np.nan, np.float32), replace(settings, seed=1), 2, 5, [0, 1])


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-300, 1e-45, 1e-38, 1e-6, 0.3, 2.0])
def test_how_sure_a_row_is_is_a_share_however_low_the_temperature(temperature: float) -> None:
    logits = row(1, 700, ties=False)
    settings = SequenceSettings(max_length=99, temperature=temperature)
    behind = [float(value) - float(logits.max()) for value in logits]
    shares = [math.exp(value / (temperature or 1.0)) for value in behind]
    sure = confidence(logits, settings, len(CONTEXT), CONTEXT)
    assert sure == pytest.approx(1 / math.fsum(shares), rel=1e-5)
