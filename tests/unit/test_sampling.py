"""The choice of a token against a slow reference and against the law it must have.

Statistical tests have fixed seeds and limits that a right sampler would exceed for one set of
seeds in a million.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from sampling_reference import reference_law, reference_token

from paceline.engine.logits_processing import Logits
from paceline.engine.sampling import choose_token
from paceline.errors import InvalidRequest
from paceline.rounds import SequenceSettings

GREEDY = SequenceSettings(max_length=1000)
SAMPLED = SequenceSettings(max_length=1000, temperature=1.0, seed=2024)
TEMPERATURES = (1e-6, 1e-3, 0.7, 1.0, 2.0)
TOP_PS = (1.0, math.nextafter(1.0, 0.0), 0.9, 0.5, 1e-6)


def random_logits(vocab_size: int, seed: int, spread: float = 3.0) -> Logits:
    return (np.random.default_rng(seed).standard_normal(vocab_size) * spread).astype(np.float32)


def tied_logits(vocab_size: int, seed: int) -> Logits:
    return np.random.default_rng(seed).integers(0, 4, vocab_size).astype(np.float32)


def chosen_token(logits: Logits, settings: SequenceSettings, position: int) -> int:
    """Without penalties the tokens before do not count."""
    return choose_token(logits, settings, position, ())


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("vocab_size", [1, 9, 300])
def test_every_combination_of_filters_agrees_with_the_reference(
    temperature: float, vocab_size: int
) -> None:
    grid = itertools.product(
        (0, 1, 2, 4, vocab_size, vocab_size + 3),
        TOP_PS,
        (0.0, 1e-9, 0.05, 0.4, 1.0),
    )
    for index, (top_k, top_p, min_p) in enumerate(grid):
        settings = replace(
            SAMPLED,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=index // 2,
            choice=index % 3,
        )
        make = tied_logits if index % 2 else random_logits
        logits = make(vocab_size, seed=index)
        expected = reference_token(logits, settings, position=index)
        assert chosen_token(logits, settings, position=index) == expected, settings


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 12.0])
@pytest.mark.parametrize("top_k,top_p", [(0, 1.0), (40, 1.0), (0, 0.9), (120, 0.5), (1000, 0.5)])
def test_a_large_vocabulary_agrees_with_the_reference(
    spread: float, top_k: int, top_p: float
) -> None:
    settings = replace(SAMPLED, top_k=top_k, top_p=top_p)
    for position in range(2):
        logits = random_logits(8_001, seed=position, spread=spread)
        expected = reference_token(logits, settings, position)
        assert chosen_token(logits, settings, position) == expected


@pytest.mark.parametrize("top_k,num_allowed", [(0, 5), (3, 3), (10, 5)])
def test_all_equal_logits_keep_the_lowest_ids(top_k: int, num_allowed: int) -> None:
    settings = replace(SAMPLED, top_k=top_k)
    chosen = {chosen_token(np.zeros(5, np.float32), settings, position) for position in range(200)}
    assert chosen == set(range(num_allowed))


def test_top_p_keeps_exactly_the_head_that_reaches_it() -> None:
    settings = replace(SAMPLED, top_p=0.5)
    logits = np.array([0, 7, 7, 7, 7, 0], np.float32) * np.float32(100)
    chosen = {chosen_token(logits, settings, position) for position in range(100)}
    assert chosen == {1, 2}


@pytest.mark.parametrize(
    "settings",
    [
        SAMPLED,
        replace(SAMPLED, temperature=0.5),
        replace(SAMPLED, temperature=2.0, top_k=5),
        replace(SAMPLED, top_p=0.8, choice=1),
        replace(SAMPLED, temperature=1.5, top_k=8, top_p=0.9, min_p=0.15),
    ],
)
def test_chosen_tokens_follow_the_law(settings: SequenceSettings) -> None:
    logits = random_logits(12, seed=4, spread=1.2)
    law = reference_law(logits, settings)
    num_draws = 2500
    counts = np.zeros(12)
    for draw in range(num_draws):  # half along one text, half over requests
        seed, position = (1, draw) if draw % 2 else (draw, 17)
        counts[chosen_token(logits, replace(settings, seed=seed), position)] += 1
    assert not counts[law == 0].any()
    possible = law > 0
    expected = law[possible] * num_draws
    statistic = float(((counts[possible] - expected) ** 2 / expected).sum())
    assert statistic < chi_square_limit(int(possible.sum()) - 1)


def chi_square_limit(degrees: int) -> float:
    """The value exceeded once in a million (Wilson and Hilferty's approximation)."""
    spread = 2 / (9 * degrees)
    return float(degrees * (1 - spread + 4.753 * math.sqrt(spread)) ** 3)


def test_a_draft_with_similar_logits_mostly_chooses_the_same_token() -> None:
    same = 0
    for position in range(300):
        logits = random_logits(500, seed=position)
        draft_logits = logits + random_logits(500, seed=9000 + position, spread=0.1)
        chosen = chosen_token(logits, SAMPLED, position)
        same += chosen == chosen_token(draft_logits, SAMPLED, position)
    assert same > 270  # independent draws would agree on some 40


@pytest.mark.parametrize("temperature", [0.0, *TEMPERATURES])
def test_what_changes_no_probability_changes_no_token(temperature: float) -> None:
    settings = replace(SAMPLED, temperature=temperature)
    logits = random_logits(100, seed=3).round(3)
    padded = np.concatenate([logits, np.full(28, -np.inf, np.float32)])
    for position in range(20):
        chosen = chosen_token(logits, settings, position)
        assert chosen_token(padded, settings, position) == chosen
        assert chosen_token(logits + np.float32(64), settings, position) == chosen


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-5, 1e-4])
@pytest.mark.parametrize("seed", range(5))
def test_a_tiny_temperature_is_greedy(temperature: float, seed: int) -> None:
    settings = replace(SAMPLED, temperature=temperature, seed=seed)
    for position in range(20):
        logits = random_logits(50, seed=position).round(2)
        logits[position] = 20.0
        assert chosen_token(logits, settings, position) == position


@pytest.mark.parametrize(
    "settings",
    [
        replace(SAMPLED, temperature=1.7, top_k=1),
        replace(SAMPLED, top_p=1e-6),
        replace(SAMPLED, min_p=1.0),
    ],
)
def test_a_filter_that_leaves_one_token_is_greedy(settings: SequenceSettings) -> None:
    for position in range(50):
        logits = random_logits(200, seed=position)
        assert chosen_token(logits, settings, position) == int(logits.argmax())


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    assert chosen_token(np.array([1, 3, 2, 3], np.float32), GREEDY, 0) == 1


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1.0, 2.0])
@pytest.mark.parametrize(
    "logits",
    [
        [3e38, -3e38, 2e38, -3e38],
        [-3e38, -np.inf, -3.1e38, -np.inf],
        [-np.inf, -np.inf, -5.0, -np.inf],
        [1e-38, 0.0, -1e-38, 1e-45],
        [0.0, 0.0, 0.0, 0.0],
    ],
)
def test_extreme_logits_raise_no_floating_point_fault(
    temperature: float, logits: list[float]
) -> None:
    row = np.array(logits, np.float32)
    for top_k, top_p, min_p in itertools.product((0, 1, 3), TOP_PS, (0.0, 0.1)):
        settings = replace(SAMPLED, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        with np.errstate(divide="raise", over="raise", invalid="raise"):
            token = chosen_token(row, settings, position=3)
        assert row[token] > -np.inf


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_of_100_forces_and_of_minus_100_bans(temperature: float) -> None:
    logits = random_logits(60, seed=1)
    favourite = int(logits.argmax())
    forced = replace(SAMPLED, temperature=temperature, logit_bias=((33, 100.0),))
    banned = replace(SAMPLED, temperature=temperature, logit_bias=((favourite, -100.0),))
    before = logits.copy()
    for position in range(50):
        assert chosen_token(logits, forced, position) == 33
        assert chosen_token(logits, banned, position) != favourite
    assert (logits == before).all(), "the row belongs to the caller"


def test_a_ban_holds_where_adding_minus_100_would_not() -> None:
    logits = np.array([500, 0, 0], np.float32)
    assert chosen_token(logits, replace(GREEDY, logit_bias=((0, -100.0),)), 0) == 1
    assert chosen_token(logits, replace(GREEDY, logit_bias=((0, -99.9),)), 0) == 0


def test_a_bias_is_added_before_everything_else() -> None:
    logits = np.zeros(20, np.float32)
    settings = replace(SAMPLED, logit_bias=((7, 2.0), (9, 1.5), (7, 1.0)), top_k=2)
    biased = logits.copy()
    biased[7], biased[9] = 3.0, 1.5
    without_bias = replace(settings, logit_bias=())
    for position in range(50):
        chosen = chosen_token(logits, settings, position)
        assert chosen == chosen_token(biased, without_bias, position)
        assert chosen in (7, 9)


def test_ids_beyond_the_vocabulary_have_no_effect() -> None:
    settings = replace(GREEDY, logit_bias=((4, 100.0),), stop_token_ids=(9,), min_length=5)
    assert chosen_token(np.array([0, 1, 0, 0], np.float32), settings, 0) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stop_tokens_are_banned_below_the_minimum_length(temperature: float) -> None:
    settings = replace(SAMPLED, temperature=temperature, stop_token_ids=(2, 5), min_length=10)
    logits = np.zeros(8, np.float32)
    logits[2] = 30.0
    for position in range(10):
        assert chosen_token(logits, settings, position) not in (2, 5)
    assert chosen_token(logits, settings, 10) == 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_allowed_token_is_chosen_and_none_is_a_clear_error(temperature: float) -> None:
    logits = random_logits(4, seed=0)
    settings = replace(
        SAMPLED,
        temperature=temperature,
        logit_bias=((0, -100.0), (1, -100.0)),
        stop_token_ids=(3,),
        min_length=5,
    )
    assert chosen_token(logits, settings, 4) == 2
    all_banned = replace(settings, stop_token_ids=(2, 3))
    with pytest.raises(InvalidRequest, match="position 4.*ban every token") as caught:
        chosen_token(logits, all_banned, 4)
    assert caught.value.field == "logit_bias"
    assert chosen_token(logits, all_banned, 5) in (2, 3)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("fault", [np.nan, np.inf])
def test_a_faulty_row_is_refused(temperature: float, fault: float) -> None:
    logits = np.array([0, fault, 1], np.float32)
    with pytest.raises(FloatingPointError, match="position 6"):
        chosen_token(logits, replace(SAMPLED, temperature=temperature), 6)


def test_choices_of_one_request_differ_and_repeat() -> None:
    logits = random_logits(1000, seed=2, spread=1.0)

    def text(choice: int) -> list[int]:
        settings = replace(SAMPLED, seed=7, choice=choice)
        return [chosen_token(logits, settings, position) for position in range(24)]

    assert len({tuple(text(choice)) for choice in range(4)}) == 4
    assert text(2) == text(2)
