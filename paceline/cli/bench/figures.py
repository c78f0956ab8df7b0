"""The arithmetic of the benchmark, on plain numbers."""

import random
from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import fmean
from typing import NamedTuple

RESAMPLES = 2000
CONFIDENCE = 0.95


class Interval(NamedTuple):
    """Where a figure lies with a confidence of 95 %."""

    low: float
    high: float


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0 to 1) of the values do not exceed, interpolated between two."""
    if not values:
        raise ValueError("no values have no percentile")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def median_of_buckets(counts: Mapping[float, float]) -> float:
    """The median of a histogram of Prometheus (upper bound to cumulative count), interpolated.

    With half of the values above the last finite bound it is infinite.
    """
    half = max(counts.values(), default=0) / 2
    low, below = 0.0, 0.0
    for bound, count in sorted(counts.items()):
        if count >= half > below:
            return low + (bound - low) * (half - below) / (count - below)
        low, below = bound, count
    raise ValueError("an empty histogram has no median")


def speedup(off: Sequence[float], on: Sequence[float]) -> float:
    """Spec-Bench's: mean tokens/s over questions with speculation, over the same without.

    It is a ratio of means of rates, not of total times: a short answer counts as a long one
    (`evaluation/speed.py` of Spec-Bench).
    """
    return fmean(on) / fmean(off)


def speedup_interval(off: Sequence[float], on: Sequence[float], seed: int) -> Interval | None:
    """A bootstrap interval of `speedup` over questions; `off[i]` and `on[i]` stay together.

    None for a single question, which says nothing about others.
    """
    if len(off) < 2:
        return None
    draw = random.Random(seed)
    places = range(len(off))
    ratios = []
    for _ in range(RESAMPLES):
        chosen = draw.choices(places, k=len(places))
        ratios.append(speedup([off[i] for i in chosen], [on[i] for i in chosen]))
    tail = (1 - CONFIDENCE) / 2
    return Interval(percentile(ratios, tail), percentile(ratios, 1 - tail))


def acceptance_by_position(histogram: Sequence[int]) -> list[float]:
    """For each place in a round, the share of rounds with drafts whose draft there was accepted.

    `histogram[j]` counts the rounds that accepted exactly j. As in vLLM a round with fewer drafts
    counts as one that was not accepted there.
    """
    num_rounds = sum(histogram)
    at_least = list(accumulate(reversed(histogram)))[::-1]
    return [count / num_rounds for count in at_least[1:]] if num_rounds else []
