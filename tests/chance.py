"""Whether counts are what chance makes of a law."""

import math

import numpy as np
from numpy.typing import ArrayLike


def chi_square(counts: ArrayLike, expected: ArrayLike) -> float:
    """Pearson's statistic."""
    observed, wanted = np.asarray(counts, float), np.asarray(expected, float)
    return float(((observed - wanted) ** 2 / wanted).sum())


def chi_square_limit(degrees: int) -> float:
    """The value exceeded once in a million (Wilson and Hilferty's approximation)."""
    spread = 2 / (9 * degrees)
    return float(degrees * (1 - spread + 4.753 * math.sqrt(spread)) ** 3)
