"""What follows, judging by where the last tokens stood before, and how likely that is.

Each earlier place counts for as many orders as tokens before it are equal to the last ones. The
estimate of each order is the share of its places at which a token followed, mixed with the estimate
of the order below, as in interpolated n-gram models (Witten and Bell 1991; PPM):

    p_n(t) = (count_n(t) + weight * p_{n-1}(t)) / (count_n + weight)

So a long match makes sure, many places that agree make sure, and places that differ make unsure.
The weights are fitted to how often texts of the default model went on so (LOG.md).
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

MAX_MATCH = 16
"""Longer matches are not told apart."""
FIRST_WEIGHT = 8.0
"""Places behind a single equal token weigh little: most of them mean nothing."""
WEIGHT = 3.0


@dataclass(slots=True)
class Match:
    """A place in an earlier text whose last tokens are those of the sequence."""

    text: "array[int]"
    place: int
    """Index of the token that followed there."""
    length: int
    """How many tokens are equal, up to `MAX_MATCH`."""

    def advance(self) -> None:
        """The token at the place has been taken."""
        self.place += 1
        self.length = min(self.length + 1, MAX_MATCH)


def match_length(text: "array[int]", place: int, tail: "array[int]") -> int:
    """How many tokens before `place` are the last ones of `tail`, up to `MAX_MATCH`."""
    most = min(MAX_MATCH, place, len(tail))
    length = 0
    while length < most and text[place - 1 - length] == tail[-1 - length]:
        length += 1
    return length


def likely_next(matches: Sequence[Match]) -> tuple[int, float]:
    """The most likely token that follows, and its probability. There must be a match.

    Of equally likely tokens the one that followed at the first match wins.
    """
    tokens = [match.text[match.place] for match in matches]
    lengths = [match.length for match in matches]
    counts = Counter(tokens)
    if len(counts) == 1:
        return tokens[0], _certainty(sorted(lengths))
    chances = dict.fromkeys(counts, 0.0)
    total, order = len(tokens), 0
    for length in sorted(set(lengths)):
        # The orders up to `length` have the same places.
        below = _share_of_lower_orders(total, order, length)
        for token, chance in chances.items():
            share = counts[token] / total
            chances[token] = share + below * (chance - share)
        for token, own_length in zip(tokens, lengths, strict=True):
            if own_length == length:
                counts[token] -= 1
                total -= 1
        order = length
    best = max(chances, key=chances.__getitem__)
    return best, chances[best]


def _certainty(lengths: Sequence[int]) -> float:
    """The probability of a token that followed at every place; lengths in rising order."""
    doubt, order = 1.0, 0
    for index, length in enumerate(lengths):
        if length > order:
            doubt *= _share_of_lower_orders(len(lengths) - index, order, length)
            order = length
    return 1.0 - doubt


def _share_of_lower_orders(num_places: int, above: int, up_to: int) -> float:
    """What is left of the estimate of order `above` in that of order `up_to`."""
    share = 1.0
    if above == 0:
        share, above = FIRST_WEIGHT / (num_places + FIRST_WEIGHT), 1
    power: float = (WEIGHT / (num_places + WEIGHT)) ** (up_to - above)
    return share * power
