"""Log-probabilities of a token and of the most likely ones, by a row as the model gave it.

Nothing that a request does to the choice of tokens (bias, penalties, temperature, filters) counts
here: clients compare texts and models with these numbers, and a number that depended on how a
token was chosen would mean something else in every request.
"""

import math

import numpy as np

from paceline.engine.model import Logits
from paceline.rounds import TokenLogprobs

MIN_LOGPROB = -9999.0
"""Stands for all that is less likely, impossible tokens included (OpenAI's number for them)."""


def token_logprobs(logits: Logits, token_id: int, num_top: int) -> TokenLogprobs:
    """Of the token in the place of `logits` [V], and of the `num_top` most likely ones there.

    Natural logarithms, computed in double precision. Equal ones rank by token id, lowest first.
    Raises `FloatingPointError` when the logits hold NaN or plus infinity.
    """
    highest = float(logits.max())
    if not math.isfinite(highest):
        raise FloatingPointError(f"The logits hold {highest}; expected finite numbers.")
    behind = np.subtract(logits, highest, dtype=np.float64)
    log_total = math.log(float(np.exp(behind).sum()))
    top_token_ids = _most_likely(logits, num_top)
    logprob, *top_logprobs = (
        max(float(behind[id]) - log_total, MIN_LOGPROB) for id in (token_id, *top_token_ids)
    )
    return TokenLogprobs(logprob, tuple(top_token_ids), tuple(top_logprobs))


def _most_likely(logits: Logits, count: int) -> list[int]:
    """The ids of the highest logits, highest first."""
    if count < 1:
        return []
    count = min(count, len(logits))
    lowest = np.partition(logits, -count)[-count]
    token_ids = np.flatnonzero(logits >= lowest)
    ranked: list[int] = token_ids[np.argsort(-logits[token_ids], kind="stable")][:count].tolist()
    return ranked
