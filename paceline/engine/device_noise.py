"""The noise of `paceline.engine.noise` in torch: the same bits on any device, many rows at once.

Every operation is a torch operation of its own, since a compiler may make one rounding of a
multiplication and an addition. Integers never wrap, and what is returned comes from operations that
IEEE 754 rounds exactly, of no library's logarithm. Knows nothing about logits. Has no shapes that
depend on values and waits for no device, so that a CUDA graph may capture it.

Dimensions: R rows, N tokens, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from paceline.engine.noise import LOG_2, NUM_ROUNDS, SQRT_HALF

_MULTIPLIERS = (0xD2511F53 - 2**32, 0xCD9E8D57 - 2**32)
"""Philox's less 2^32: their products with words of 32 bits stay below 2^62."""
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW_WORD = 0xFFFFFFFF
_EXPONENT_OF_ONE = 0x3FF << 52


class Places(NamedTuple):
    """What the noise of a row depends on; integers [R, 1] in 64 bits."""

    seed_low: Tensor
    seed_high: Tensor
    choice: Tensor
    position: Tensor


def uniform_rows(places: Places, vocab_size: int) -> Tensor:
    """Steps 1 and 2 [R, V] for the tokens 0 to `vocab_size` - 1: half the work of `uniform`."""
    pairs = torch.arange((vocab_size + 1) // 2, device=places.position.device)
    words = _philox(places, pairs[None])
    uniforms = torch.stack((_uniform(*words[:2]), _uniform(*words[2:])), dim=-1)
    return uniforms.flatten(1)[:, :vocab_size]


def uniform(
    places: Places,
    token_ids: Tensor,  # [R, N], integers in 64 bits
) -> Tensor:
    """Steps 1 and 2 [R, N] for some tokens."""
    words = _philox(places, token_ids >> 1)
    is_odd = (token_ids & 1).bool()
    return torch.where(is_odd, _uniform(*words[2:]), _uniform(*words[:2]))


def gumbel_of(uniforms: Tensor) -> Tensor:
    """Step 3, for numbers that step 2 can yield."""
    return -_log(-_log(uniforms))


def _philox(
    places: Places,
    c0: Tensor,  # [R or 1, N]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output words [R, N] for the counters (c0, position, choice, 0).

    With M - 2^32 in a multiplier's place, a product's high word lacks the other factor.
    """
    shape = torch.broadcast_shapes(c0.shape, places.position.shape)
    c1, c2 = places.position.expand(shape), places.choice.expand(shape)
    c0, c3 = c0.expand(shape), torch.zeros_like(c2)
    for index in range(NUM_ROUNDS):
        key_0, key_1 = (
            (word + index * step) & _LOW_WORD
            for word, step in zip(places[:2], _KEY_STEPS, strict=True)
        )
        product_0, product_1 = (c * m for c, m in zip((c0, c2), _MULTIPLIERS, strict=True))
        high_0, high_1 = (product_0 >> 32).add_(c0), (product_1 >> 32).add_(c2)
        c0, c1 = high_1.bitwise_xor_(c1).bitwise_xor_(key_0), product_1.bitwise_and_(_LOW_WORD)
        c2, c3 = high_0.bitwise_xor_(c3).bitwise_xor_(key_1), product_0.bitwise_and_(_LOW_WORD)
    return c0, c1, c2, c3


def _uniform(a: Tensor, b: Tensor) -> Tensor:
    """k becomes the fraction bits of a double in [1, 2); less 1 - 2^-53 that is u."""
    bits = (a << 20).bitwise_or_(b >> 12).bitwise_or_(_EXPONENT_OF_ONE)
    return bits.view(torch.float64).sub_(1.0 - 2.0**-53)


def _log(x: Tensor) -> Tensor:
    """The logarithm of step 3: the series of 2 artanh(s)."""
    fraction, exponent = torch.frexp(x)  # fraction in [0.5, 1)
    is_low = fraction < SQRT_HALF
    fraction = torch.where(is_low, fraction * 2.0, fraction)
    s = (fraction - 1.0) / (fraction + 1.0)
    z = s * s
    series = torch.full_like(z, 1.0 / 23.0)
    for divisor in range(21, 0, -2):
        series = series * z + 1.0 / divisor
    scale = exponent.double() - is_low.double()
    return series * s * 2.0 + scale * LOG_2
