"""The noise against published vectors, an independent implementation, and statistics.

Statistical tests have fixed seeds, so they always say the same. Their limits are those that a
right generator would exceed for one seed in a million.
"""

import json
import math
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from chance import chi_square, chi_square_limit
from numpy.typing import NDArray

from paceline.engine.noise import (
    MAX_GUMBEL,
    MIN_GUMBEL,
    gumbel,
    gumbel_of,
    philox4x32,
    uniform,
    uniform_row,
)

VECTORS = json.loads(
    (Path(__file__).parents[2] / "protos" / "noise_vectors.json").read_text(encoding="utf-8")
)
VOCAB_SIZE = 49152
Z_ONE_IN_A_MILLION = 4.892  # two-sided, normal

Sampler = Callable[..., NDArray[np.float64]]


def reference_philox(counter: list[int], key: list[int]) -> list[int]:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product_0, product_1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            (product_1 >> 32) ^ c1 ^ k0,
            product_1 % 2**32,
            (product_0 >> 32) ^ c3 ^ k1,
            product_0 % 2**32,
        )
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


def reference_words(seed: int, choice: int, position: int, token: int) -> list[int]:
    words = reference_philox([token // 2, position, choice, 0], [seed % 2**32, seed // 2**32])
    return words[2:] if token % 2 else words[:2]


def reference_uniform(words: list[int]) -> float:
    k = words[0] * 2**20 + words[1] // 2**12
    return math.ldexp(2 * k + 1, -53)


def reference_gumbel(u: float) -> float:
    return -reference_log(-reference_log(u))


def reference_log(x: float) -> float:
    m, e = math.frexp(x)
    if m < 0.7071067811865476:
        m, e = 2 * m, e - 1
    s = (m - 1) / (m + 1)
    z = s * s
    p = 1 / 23
    for divisor in (21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1):
        p = p * z + 1 / divisor
    return p * s * 2 + e * 0.6931471805599453


def bits(x: float) -> str:
    return struct.pack(">d", x).hex()


@pytest.mark.parametrize("vector", VECTORS["philox4x32_10"])
def test_philox_gives_the_authors_known_answers(vector: dict[str, list[str]]) -> None:
    counter = [int(word, 16) for word in vector["counter"]]
    k0, k1 = (int(word, 16) for word in vector["key"])
    expected = [int(word, 16) for word in vector["output"]]
    words_02, words_13 = philox4x32(k1 << 32 | k0, np.array(counter[:1]), *counter[1:])
    assert [words_02[0, 0], words_13[0, 0], words_02[1, 0], words_13[1, 0]] == expected
    assert reference_philox(counter, [k0, k1]) == expected


@pytest.mark.parametrize("vector", VECTORS["noise"])
def test_published_noise_is_what_we_compute_and_what_the_description_says(
    vector: dict[str, str | int | float | list[str]],
) -> None:
    place = int(vector["seed"]), vector["choice"], vector["position"]
    words = reference_words(*place, vector["token"])
    assert [f"{word:08x}" for word in words] == vector["words"]
    u = reference_uniform(words)
    assert (u, bits(u)) == (vector["uniform"], vector["uniform_bits"])
    g = reference_gumbel(u)
    assert (g, bits(g)) == (vector["gumbel"], vector["gumbel_bits"])
    token_ids = np.array([vector["token"]])
    assert uniform(*place, token_ids)[0] == u
    assert gumbel(*place, token_ids)[0] == g


@pytest.mark.parametrize("vector", VECTORS["gumbel"])
def test_published_gumbels_of_extreme_uniforms(vector: dict[str, str | float]) -> None:
    u = math.ldexp(2 * int(vector["k"]) + 1, -53)
    g = reference_gumbel(u)
    assert (bits(u), bits(g)) == (vector["uniform_bits"], vector["gumbel_bits"])
    assert gumbel_of(np.array([u]))[0] == g


def test_every_bit_agrees_with_the_independent_implementation() -> None:
    rng = np.random.default_rng(1)
    for _ in range(40):
        seed = int(rng.integers(2**64, dtype=np.uint64))
        choice, position = (int(n) for n in rng.integers(2**32, size=2))
        token_ids = rng.integers(2**18, size=25)
        expected = [
            reference_gumbel(reference_uniform(reference_words(seed, choice, position, int(token))))
            for token in token_ids
        ]
        assert gumbel(seed, choice, position, token_ids).tolist() == expected


def test_the_logarithm_is_within_four_units_in_the_last_place() -> None:
    x = np.concatenate([uniform_row(3, 0, 0, 20_000), -np.log(uniform_row(3, 0, 1, 20_000))])
    ours = np.array([reference_log(value) for value in x.tolist()])
    assert np.abs(ours - np.log(x)).max() <= 4 * np.spacing(36.75)
    assert (np.abs(ours - np.log(x)) <= 4 * np.spacing(np.abs(np.log(x)))).all()


@pytest.mark.parametrize("vocab_size", [1, 2, 7, 1000, VOCAB_SIZE])
def test_a_whole_row_is_the_single_tokens(vocab_size: int) -> None:
    row = uniform_row(11, 2, 77, vocab_size)
    assert row.shape == (vocab_size,)
    token_ids = np.arange(vocab_size)[::-1]
    assert (uniform(11, 2, 77, token_ids) == row[::-1]).all()


def test_no_tokens_no_noise() -> None:
    assert gumbel(1, 2, 3, np.array([], dtype=np.int64)).shape == (0,)


def test_threads_do_not_disturb_each_other() -> None:
    expected = [uniform_row(seed, 0, 0, VOCAB_SIZE) for seed in range(4)]
    wrong = []

    def check(seed: int) -> None:
        for _ in range(20):
            if not np.array_equal(uniform_row(seed, 0, 0, VOCAB_SIZE), expected[seed]):
                wrong.append(seed)

    threads = [threading.Thread(target=check, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_earlier_results_stay_when_the_scratch_is_used_again() -> None:
    row = uniform_row(1, 0, 0, 100)
    copy = row.copy()
    uniform_row(2, 0, 0, 100)
    assert (row == copy).all()


def test_noise_lies_within_its_stated_bounds() -> None:
    extremes = gumbel_of(np.array([2.0**-53, 1.0 - 2.0**-53]))
    assert MIN_GUMBEL < extremes[0] < -3.6
    assert 36.73 < extremes[1] < MAX_GUMBEL
    with np.errstate(all="raise"):
        for position in range(20):
            noise = gumbel_of(uniform_row(5, 0, position, VOCAB_SIZE))
            assert noise.min() >= extremes[0]
            assert noise.max() <= extremes[1]


def test_uniforms_pass_chi_square_and_kolmogorov_smirnov() -> None:
    uniforms = np.concatenate([uniform_row(2024, 0, p, VOCAB_SIZE) for p in range(20)])
    counts = np.bincount((uniforms * 1024).astype(np.int64), minlength=1024)
    assert chi_square(counts, np.full(1024, len(uniforms) / 1024)) < chi_square_limit(1023)
    ranked = np.sort(uniforms)
    steps = np.arange(len(ranked) + 1) / len(ranked)
    distance = max((steps[1:] - ranked).max(), (ranked - steps[:-1]).max())
    assert distance * math.sqrt(len(ranked)) < math.sqrt(-0.5 * math.log(1e-6 / 2))


def test_every_bit_of_a_uniform_is_fair() -> None:
    uniforms = np.concatenate([uniform_row(99, 0, p, VOCAB_SIZE) for p in range(4)])
    k = (uniforms * 2.0**52).astype(np.uint64)
    for bit in range(52):
        ones = int(((k >> np.uint64(bit)) & np.uint64(1)).sum())
        assert is_plausible(ones, len(k), 0.5), f"bit {bit}"


@pytest.mark.parametrize("x", [-3.0, -2.0, -1.0, 0.0, 2.0, 5.0, 8.0, 11.0])
def test_the_tails_are_those_of_a_gumbel(x: float) -> None:
    noise = gumbel_of(np.concatenate([uniform_row(7, 0, p, VOCAB_SIZE) for p in range(20)]))
    probability_below = math.exp(-math.exp(-x))
    if x < 0:
        assert is_plausible(int((noise < x).sum()), len(noise), probability_below)
    else:
        assert is_plausible(int((noise > x).sum()), len(noise), 1 - probability_below)


NEIGHBOURS: dict[str, Sampler] = {
    "seed": lambda step: uniform_row(40 + step, 1, 6, VOCAB_SIZE),
    "high word of the seed": lambda step: uniform_row(40 + (step << 32), 1, 6, VOCAB_SIZE),
    "choice": lambda step: uniform_row(40, 1 + step, 6, VOCAB_SIZE),
    "position": lambda step: uniform_row(40, 1, 6 + step, VOCAB_SIZE),
    "next token": lambda step: uniform_row(40, 1, 6, VOCAB_SIZE + step)[step:],
    "token of the other parity": lambda step: uniform(40, 1, 6, np.arange(VOCAB_SIZE) ^ step),
    "choice and position swapped": lambda step: uniform_row(40, 1 + 5 * step, 6 - 5 * step, 49152),
}


@pytest.mark.parametrize("what", NEIGHBOURS)
def test_neighbours_are_independent(what: str) -> None:
    here, there = NEIGHBOURS[what](0), NEIGHBOURS[what](1)
    assert not (here == there).any()
    if what == "token of the other parity":  # each pair once
        here, there = here[::2], there[::2]
    assert_independent(here, there)


def test_positions_in_a_row_of_time_are_independent() -> None:
    series = np.array([uniform(8, 0, position, np.array([123]))[0] for position in range(4001)])
    assert_independent(series[:-1], series[1:], num_bins=8)


def assert_independent(
    here: NDArray[np.float64], there: NDArray[np.float64], num_bins: int = 16
) -> None:
    cells = (here * num_bins).astype(np.int64) * num_bins + (there * num_bins).astype(np.int64)
    counts = np.bincount(cells, minlength=num_bins**2)
    expected = np.full(num_bins**2, len(here) / num_bins**2)
    assert chi_square(counts, expected) < chi_square_limit(num_bins**2 - 1)


def is_plausible(count: int, num_draws: int, probability: float) -> bool:
    """Whether a binomial count is within the two-sided limits of one in a million."""
    expected = num_draws * probability
    limit = Z_ONE_IN_A_MILLION * math.sqrt(expected * (1 - probability))
    return abs(count - expected) <= limit + 1
