"""Which tokens top-k and top-p keep of each row, in torch: `paceline.engine.sampling` on a device.

Rows are not sorted: a token's logit becomes a number of 32 bits, and three histograms, of 11, 11
and 10 bits, tell where the ranking is cut. Probabilities count as integers, of which a sum does not
depend on its order. So nothing depends on a row's neighbours, or on threads; only the exponential
function may differ in the last bit from one device to the next, and from numpy's. That moves the
cut of top-p where a head's share and `top_p` are equal but for some parts in 10^12.

Has no shapes that depend on values and waits for no device, so that a CUDA graph may capture it.

Dimensions: R rows, V vocabulary.
"""

import math

import torch
from torch import Tensor

from paceline.engine.elementwise import apply_row_exact

_DIGITS = ((21, 11), (10, 11), (0, 10))
"""Shift and width of the digits of a rank key, the highest first."""


def mass_of_best(vocab_size: int) -> int:
    """What `masses` counts for the best token: the sum over all stays below 2^62."""
    return 1 << (62 - vocab_size.bit_length())


def masses(
    scaled: Tensor,  # [R, V] in double precision, the best token of a row has 0
) -> Tensor:
    """The weights of the tokens in the law, as integers in 64 bits [R, V]."""
    weights = torch.exp(scaled) if scaled.is_cuda else apply_row_exact(torch.exp, scaled)
    return weights.mul_(mass_of_best(scaled.shape[-1])).round_().long()


def kept_tokens(
    logits: Tensor,  # [R, V] in single precision
    scaled: Tensor,  # [R, V] in double precision
    top_k: Tensor | None,  # [R, 1], integers in 64 bits from 1 to V
    top_p: Tensor | None,  # [R, 1] in double precision, below 1
    mass: Tensor | None,  # [R, V], of `masses`; None without `top_p`
) -> Tensor:
    """Which tokens [R, V] stay after top-k, if there is one, and then top-p, if there is one."""
    keys = _rank_keys(logits)
    if top_k is not None:
        last, num_before = _last_of_head(keys, torch.ones_like(top_k), top_k)
        num_kept = top_k
    if top_p is not None:
        assert mass is not None
        if top_k is None:
            total = mass.sum(1, keepdim=True)
        else:
            total = torch.where(keys < last, mass, 0).sum(1, keepdim=True)
            total += (num_kept - num_before) * _highest(mass, keys == last, 0)
        least = (top_p * total).ceil_().long().clamp_(min=1)
        last, mass_before = _last_of_head(keys, mass, least)
        mass_of_last = _highest(mass, keys == last, 0).clamp_(min=1)
        num_of_last = (least - mass_before + mass_of_last - 1) // mass_of_last
        num_kept = (keys < last).sum(1, keepdim=True) + num_of_last
    lowest = _highest(scaled, keys == last, -math.inf)
    is_above, is_lowest = scaled > lowest, scaled == lowest
    num_left = num_kept - is_above.sum(1, keepdim=True)
    return is_above | (is_lowest & (is_lowest.cumsum(1) <= num_left))


def _rank_keys(logits: Tensor) -> Tensor:
    """Integers from 0 to 2^32 - 1 in the opposite order of the logits.

    Those of zeros differ by their signs. That, and logits that are equal once they are scaled,
    does no harm: equal ones are counted together in the end.
    """
    bits = logits.view(torch.int32)
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return 0x7FFFFFFF - ascending.long()


def _last_of_head(
    keys: Tensor,  # [R, V]
    weights: Tensor,  # [R, V] or [R, 1], integers
    least: Tensor,  # [R, 1], at most the sum of a row's weights
) -> tuple[Tensor, Tensor]:
    """The lowest key such that a row's keys up to it weigh `least`; what those before it weigh."""
    last, before = torch.zeros_like(least), torch.zeros_like(least)
    for shift, num_bits in _DIGITS:
        digits = keys >> shift
        counted = torch.where(digits >> num_bits == last, weights, 0)
        histogram = counted.new_zeros(len(keys), 1 << num_bits)
        histogram.scatter_add_(1, digits.bitwise_and_((1 << num_bits) - 1), counted)
        through = histogram.cumsum(1) + before
        # Of a row of NaN all may be below; the clamp keeps the index within bounds.
        digit = (through < least).sum(1, keepdim=True).clamp_(max=(1 << num_bits) - 1)
        before = through.gather(1, digit) - histogram.gather(1, digit)
        last = last << num_bits | digit
    return last, before


def _highest(values: Tensor, of: Tensor, otherwise: float) -> Tensor:
    return torch.where(of, values, otherwise).amax(1, keepdim=True)
