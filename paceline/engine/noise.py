"""The noise that couples draft and target: a number for every token at every position.

`noise(seed, choice, position, token)` is a standard Gumbel variable that every worker computes for
itself, on any machine, bit for bit. Whoever adds it to scaled logits and takes the argmax samples
from their softmax (the Gumbel-max trick); a draft and a target that add the same noise mostly
choose the same token (arXiv 2408.07978). Knows nothing about logits or sequences; safe to
call from any thread.

For an implementation in another language (test vectors: `protos/noise_vectors.json`):

1. Words. Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with
   key = (seed mod 2^32, seed div 2^32) and counter = (token div 2, position, choice, 0). The last
   counter word is the purpose: 0 for this noise, others in `paceline.engine.draws`. An even token
   takes the output words (0, 1) as (a, b), an odd one the words (2, 3).
2. Uniform. k = a * 2^20 + b div 2^12, a number of 52 bits; u = (2k + 1) * 2^-53. Exact in a
   double, inside (0, 1), and so is 1 - u.
3. Gumbel. g = -log(-log(u)), between -3.61 and 36.74, with this logarithm in IEEE doubles, every
   operation rounded by itself (no fused multiply-add). Write x = m * 2^e with
   0.7071067811865476 <= m < 1.4142135623730952; s = (m - 1) / (m + 1); z = s * s;
   p = 1/23, then p = p * z + 1/d for d = 21, 19, ..., 3, 1; log x = p * s * 2 + e * log 2, where
   log 2 = 0.6931471805599453, products from the left. It is within 4 units in the last place of
   the true value.

Libraries' own logarithms differ in the last bit from one processor to the next, numpy's included,
hence step 3. It costs some twenty passes over an array against two, so the sampler takes it only
for the tokens that can still win.
"""

import threading
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

TokenIds = NDArray[np.int64]
Uniforms = NDArray[np.float64]
Words = NDArray[np.uint64]

MAX_GUMBEL = 36.75
"""No noise is larger."""
MIN_GUMBEL = -3.61
"""No noise is smaller."""

NUM_ROUNDS = 10
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_KEY_STEPS = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
_LOW_WORD = np.uint64(0xFFFFFFFF)
_WORD_BITS = np.uint64(32)

_EXPONENT_OF_ONE = np.uint64(0x3FF << 52)
SQRT_HALF = 0.7071067811865476
LOG_2 = 0.6931471805599453


def gumbel(seed: int, choice: int, position: int, token_ids: TokenIds) -> NDArray[np.float64]:
    """The noise of some tokens at one position; `token_ids` is one-dimensional."""
    return gumbel_of(uniform(seed, choice, position, token_ids))


def gumbel_of(uniforms: Uniforms) -> NDArray[np.float64]:
    """Step 3, for numbers that step 2 can yield."""
    return -_log(-_log(uniforms))


def uniform(seed: int, choice: int, position: int, token_ids: TokenIds) -> Uniforms:
    """Steps 1 and 2 for some tokens; ids are non-negative and less than 2^32."""
    pairs = _uniform_pairs(seed, token_ids >> 1, position, choice)
    uniforms: Uniforms = pairs[np.arange(len(pairs)), token_ids & 1]
    return uniforms


def uniform_row(seed: int, choice: int, position: int, vocab_size: int) -> Uniforms:
    """Steps 1 and 2 for the tokens 0 to `vocab_size` - 1: half the work of `uniform` a token."""
    pairs = _uniform_pairs(seed, np.arange((vocab_size + 1) // 2), position, choice)
    return pairs.reshape(-1)[:vocab_size]


def single_uniform(seed: int, c0: int, position: int, choice: int, purpose: int) -> float:
    """Steps 1 and 2 for the counter (c0, position, choice, purpose) and its words (0, 1)."""
    return float(_uniform_pairs(seed, np.array([c0]), position, choice, purpose)[0, 0])


def philox4x32(
    seed: int,
    c0: TokenIds,  # [n], like c1, c2, c3 unless they are numbers
    c1: ArrayLike,
    c2: ArrayLike,
    c3: ArrayLike,
) -> tuple[Words, Words]:
    """The output words for n counters: words 0 and 2 as [2, n], words 1 and 3 as [2, n].

    Words live in 64 bits, so that products need no care. The results lie in memory that the next
    call of this thread overwrites: fresh memory would cost more than the arithmetic.
    """
    products, words, high = _scratch.arrays(len(c0))
    products[0], words[0], products[1], words[1] = c0, c1, c2, c3
    for key in _round_keys(seed):
        np.multiply(products, _MULTIPLIERS, out=products)
        np.right_shift(products, _WORD_BITS, out=high)
        np.bitwise_xor(words, key, out=words)
        np.bitwise_xor(words, high[::-1], out=words)
        np.bitwise_and(products, _LOW_WORD, out=products)
        products, words = words, products[::-1]
    return products, words


class _Scratch(threading.local):
    """Memory for `philox4x32`, one for each thread, as large as the largest call so far."""

    def __init__(self) -> None:
        self._memory = np.empty(0, dtype=np.uint64)

    def arrays(self, num_counters: int) -> Words:
        """Three arrays [2, num_counters] of any content."""
        size = 3 * 2 * num_counters
        if size > len(self._memory):
            self._memory = np.empty(size, dtype=np.uint64)
        return self._memory[:size].reshape(3, 2, num_counters)


_scratch = _Scratch()


@lru_cache(maxsize=1024)
def _round_keys(seed: int) -> tuple[Words, ...]:
    key = np.array([[seed & 0xFFFFFFFF], [seed >> 32 & 0xFFFFFFFF]], dtype=np.uint64)
    return tuple(key + np.uint64(index) * _KEY_STEPS & _LOW_WORD for index in range(NUM_ROUNDS))


def _uniform_pairs(
    seed: int, c0: TokenIds, position: int, choice: int, purpose: int = 0
) -> Uniforms:
    """The uniforms [n, 2] of the even and of the odd token of each counter.

    k becomes the fraction bits of a double in [1, 2), so 1 + k * 2^-52; less 1 - 2^-53 that is u.
    """
    a, b = philox4x32(seed, c0, position, choice, purpose)
    np.left_shift(a, np.uint64(20), out=a)
    np.right_shift(b, np.uint64(12), out=b)
    np.bitwise_or(a, b, out=a)
    np.bitwise_or(a, _EXPONENT_OF_ONE, out=a)
    pairs = np.empty((len(c0), 2))
    np.subtract(a.view(np.float64), 1.0 - 2.0**-53, out=pairs.T)
    return pairs


def _log(x: Uniforms) -> Uniforms:
    """The logarithm of step 3: the series of 2 artanh(s)."""
    fraction, exponent = np.frexp(x)  # fraction in [0.5, 1)
    is_low = fraction < SQRT_HALF
    fraction = np.where(is_low, 2.0 * fraction, fraction)
    s = (fraction - 1.0) / (fraction + 1.0)
    z = s * s
    series = np.full_like(z, 1.0 / 23.0)
    for divisor in range(21, 0, -2):
        series = series * z + 1.0 / divisor
    return series * s * 2.0 + (exponent - is_low) * LOG_2
