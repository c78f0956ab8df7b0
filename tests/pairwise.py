"""Few combinations of factors, in which still every two values meet."""

import itertools
from collections.abc import Iterable


def pairwise_cover(*factors: Iterable[object]) -> list[tuple[object, ...]]:
    """Few combinations in which every two values of different factors meet.

    Of equally good combinations the first is taken, so the first values come most often.
    """

    def pairs(combination: tuple[object, ...]) -> set[object]:
        return set(itertools.combinations(enumerate(combination), 2))

    combinations = {combination: pairs(combination) for combination in itertools.product(*factors)}
    missing = set().union(*combinations.values())
    cover = []
    while missing:
        best = max(combinations, key=lambda combination: len(combinations[combination] & missing))
        cover.append(best)
        missing -= combinations[best]
    return cover
