"""The random numbers of the rules `rejection` and `block`, and of the drafts made for them.

Each number belongs to a seed, a choice, the position where its round starts, the position it
decides about and a purpose. So drafting, accepting and recovering are independent of each other, no
round uses a number of another one, and a round that is repeated repeats its result. (The numbers of
a round must not come back in the next: `block` decides about a token by the drafts behind it, so
what is drafted there again must be drawn anew.)

Knows nothing about models or rounds. The generator is that of `paceline.engine.noise`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.engine.noise import single_uniform
from paceline.rounds import SequenceSettings, Support

Law = NDArray[Any]
"""The probability `[V]` of each token: float64, or fractions in proofs."""

MAX_SUPPORT = 256
"""Tokens that a draft is sampled from: the most likely ones. Any law of the draft is right; a
longer list would cost more on the wire than it gains."""


class Purpose(Enum):
    """What a number decides; values are the last counter word (0 is the coupled noise)."""

    DRAFT = 1
    ACCEPT = 2
    RECOVER = 3


@dataclass(frozen=True, slots=True)
class Draws:
    """The numbers of one round of one sequence."""

    settings: SequenceSettings
    start: int
    """The length of the sequence when the round begins."""

    def happens(self, position: int, probability: float) -> bool:
        """Whether the draft at `position` is accepted."""
        return self._uniform(Purpose.ACCEPT, position) < probability

    def pick(self, position: int, weights: Law) -> int:
        """The target's own token at `position`, by weights `[V]` that are not all 0."""
        return pick(weights, self._uniform(Purpose.RECOVER, position))

    def draft(self, position: int, law: Law) -> tuple[int, Support]:
        """A draft at `position`, and the law that it was sampled from."""
        token_ids = np.flatnonzero(law)
        if len(token_ids) > MAX_SUPPORT:
            most_likely = np.argpartition(law[token_ids], -MAX_SUPPORT)[-MAX_SUPPORT:]
            token_ids = token_ids[most_likely]
        # In single precision here already: the target must count with the very same numbers.
        weights = law[token_ids].astype(np.float32)
        index = pick(weights, self._uniform(Purpose.DRAFT, position))
        return int(token_ids[index]), Support(token_ids.tolist(), weights.tolist())

    def _uniform(self, purpose: Purpose, position: int) -> float:
        key = self.settings
        return single_uniform(key.seed, self.start, position, key.choice, purpose.value)


def pick(weights: Law, uniform: float) -> int:
    """The index that a number from (0, 1) stands for, each with the share of its weight."""
    heights = np.cumsum(weights, dtype=np.float64)
    index = int(np.searchsorted(heights, uniform * heights[-1], side="right"))
    # The product may be rounded up to the whole sum.
    return index if index < len(heights) else int(np.flatnonzero(weights)[-1])


def is_support_of(support: Support, token_id: int) -> bool:
    """Whether a law is one, and could have yielded the token."""
    token_ids = np.asarray(support.token_ids, dtype=np.int64)
    weights = np.asarray(support.weights, dtype=np.float64)
    if len(weights) != len(token_ids) or len(np.unique(token_ids)) != len(token_ids):
        return False
    if not np.isfinite(weights).all() or (weights < 0.0).any():
        return False
    return bool((weights[token_ids == token_id] > 0.0).any())


def draft_law(support: Support | None, token_id: int, vocab_size: int) -> tuple[Law, float]:
    """The draft's law `[V]`, and its probability of the token that was drawn.

    None is the law of a draft that was not sampled: all on its token. Tokens that the target lacks
    keep their share, so the law may sum to less than 1.
    """
    support = support or Support((token_id,), (1.0,))
    token_ids = np.asarray(support.token_ids, dtype=np.int64)
    weights = np.asarray(support.weights, dtype=np.float64)
    probabilities = weights / weights.sum()
    is_known = token_ids < vocab_size
    law = np.zeros(vocab_size)
    law[token_ids[is_known]] = probabilities[is_known]
    return law, float(probabilities[token_ids == token_id].item())
