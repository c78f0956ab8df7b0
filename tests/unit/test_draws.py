"""The numbers behind `rejection` and `block`: fair, independent, repeatable, never used twice."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from chance import chi_square, chi_square_limit

from paceline.engine import draws
from paceline.engine.draws import MAX_SUPPORT, Draws, Purpose, draft_law, is_support_of, pick
from paceline.engine.noise import uniform
from paceline.rounds import SequenceSettings, Support

SETTINGS = SequenceSettings(max_length=99, temperature=1.0, seed=5)
LAW = np.array([0.1, 0.0, 0.5, 0.25, 0.15])
NUM_SEEDS = 4000


def numbers_of(settings: SequenceSettings, start: int, position: int) -> tuple[float, ...]:
    round = Draws(settings, start)
    return tuple(round._uniform(purpose, position) for purpose in Purpose)


def test_every_number_has_a_key_of_its_own() -> None:
    keys = product([5, 6, 5 + 2**32], [0, 1], [3, 4, 5], [5, 6])
    numbers = [
        numbers_of(replace(SETTINGS, seed=seed, choice=choice), start, position)
        for seed, choice, start, position in keys
    ]
    coupled = uniform(5, 0, 5, np.arange(6))
    distinct = {number for row in numbers for number in row} | {*coupled.tolist()}
    assert len(distinct) == 3 * len(numbers) + len(coupled)


def test_a_round_that_is_repeated_repeats_its_numbers() -> None:
    assert numbers_of(SETTINGS, 4, 6) == numbers_of(SETTINGS, 4, 6)
    assert Draws(SETTINGS, 4).draft(6, LAW) == Draws(SETTINGS, 4).draft(6, LAW)


def counts_of(what: str) -> np.ndarray:
    counts = np.zeros(len(LAW))
    for seed in range(NUM_SEEDS):
        round = Draws(replace(SETTINGS, seed=seed), 3)
        token_id = round.draft(7, LAW)[0] if what == "draft" else round.pick(7, LAW)
        counts[token_id] += 1
    return counts


@pytest.mark.parametrize("what", ["draft", "own"])
def test_tokens_come_as_often_as_their_law_says(what: str) -> None:
    counts = counts_of(what)
    assert counts[1] == 0
    possible = LAW > 0
    statistic = chi_square(counts[possible], NUM_SEEDS * LAW[possible])
    assert statistic < chi_square_limit(possible.sum() - 1)


def test_drafting_accepting_and_recovering_are_independent() -> None:
    """Of one round, of neighbouring positions, and of rounds with neighbouring starts."""
    cells = np.array(
        [
            [
                *numbers_of(replace(SETTINGS, seed=seed), 3, 7),
                *numbers_of(replace(SETTINGS, seed=seed), 3, 8),
                *numbers_of(replace(SETTINGS, seed=seed), 4, 7),
            ]
            for seed in range(NUM_SEEDS)
        ]
    )
    halves = (cells * 4).astype(int)
    for one in range(halves.shape[1]):
        for other in range(one):
            counts = np.bincount(halves[:, one] * 4 + halves[:, other], minlength=16)
            assert chi_square(counts, np.full(16, NUM_SEEDS / 16)) < chi_square_limit(15)


def test_a_draft_tells_the_very_numbers_that_it_was_sampled_from() -> None:
    law = np.random.default_rng(1).dirichlet(np.full(1000, 0.3))
    token_id, support = Draws(SETTINGS, 3).draft(7, law)
    assert len(support.token_ids) == MAX_SUPPORT
    assert is_support_of(support, token_id)
    told = dict(zip(support.token_ids, support.weights, strict=True))
    assert min(told.values()) >= np.float32(np.sort(law)[-MAX_SUPPORT])
    assert all(weight == np.float32(law[id]) for id, weight in told.items())
    read, probability = draft_law(support, token_id, len(law))
    assert read.sum() == pytest.approx(1.0)
    assert probability == read[token_id] > law[token_id]


def test_a_law_with_fewer_tokens_tells_only_those() -> None:
    _, support = Draws(SETTINGS, 3).draft(7, LAW)
    assert sorted(support.token_ids) == [0, 2, 3, 4]


@pytest.mark.parametrize("uniform_number", [2.0**-53, 0.5, 1 - 2.0**-53])
def test_what_has_no_weight_is_never_picked(uniform_number: float) -> None:
    for weights in ([0.0, 1.0, 0.0], [0.0, 3e-300, 0.0], [0.1, 0.7, 0.2, 0.0]):
        picked = pick(np.array(weights), uniform_number)
        assert weights[picked] > 0


def test_the_law_of_a_draft_that_was_not_sampled_is_all_on_its_token() -> None:
    law, probability = draft_law(None, 2, 4)
    assert (law.tolist(), probability) == ([0, 0, 1, 0], 1)


def test_tokens_that_the_target_lacks_keep_their_share() -> None:
    law, probability = draft_law(Support((1, 9), (1.0, 3.0)), 9, 4)
    assert (law.tolist(), probability) == ([0, 0.25, 0, 0], 0.75)


@pytest.mark.parametrize(
    ("token_ids", "weights"),
    [
        ((1, 2), (1.0,)),
        ((2, 3), (1.0, 1.0)),
        ((1, 2), (0.0, 1.0)),
        ((1, 1), (1.0, 1.0)),
        ((1, 2), (1.0, -1.0)),
        ((1, 2), (1.0, float("nan"))),
        ((1, 2), (1.0, float("inf"))),
        ((), ()),
    ],
    ids=str,
)
def test_what_is_no_law_of_the_token_is_told_apart(
    token_ids: tuple[int, ...], weights: tuple[float, ...]
) -> None:
    assert is_support_of(Support((1, 2), (1.0, 0.0)), 1)
    assert not is_support_of(Support(token_ids, weights), 1)


def test_purposes_that_share_their_numbers_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def shared(self: Draws, purpose: Purpose, position: int) -> float:
        return draws.single_uniform(self.settings.seed, self.start, position, 0, 1)

    monkeypatch.setattr(Draws, "_uniform", shared)
    with pytest.raises(AssertionError):
        test_every_number_has_a_key_of_its_own()
    with pytest.raises(AssertionError):
        test_drafting_accepting_and_recovering_are_independent()


def test_a_start_that_is_no_part_of_the_key_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Draws._uniform

    def startless(self: Draws, purpose: Purpose, position: int) -> float:
        return own(Draws(self.settings, 0), purpose, position)

    monkeypatch.setattr(Draws, "_uniform", startless)
    with pytest.raises(AssertionError):
        test_drafting_accepting_and_recovering_are_independent()
