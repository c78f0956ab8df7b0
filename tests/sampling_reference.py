"""The choice of a token by the book: slow, obvious, and independent of the product's sampler."""

import math

import numpy as np

from paceline.engine.noise import gumbel
from paceline.engine.sampling import Logits
from paceline.rounds import SequenceSettings


def reference_token(logits: Logits, settings: SequenceSettings, position: int) -> int:
    scaled = reference_scaled(logits, settings)
    noise = gumbel(settings.seed, settings.choice, position, np.arange(len(logits)))
    scores = {token: scaled[token] + noise[token] for token in reference_kept(scaled, settings)}
    return min(scores, key=lambda token: (-scores[token], token))


def reference_scaled(logits: Logits, settings: SequenceSettings) -> list[float]:
    highest = max(logits.tolist())
    return [(logit - highest) / settings.temperature for logit in logits.tolist()]


def reference_kept(scaled: list[float], settings: SequenceSettings) -> list[int]:
    """The tokens that top-k, top-p and min-p leave, by the book: sort, cut, sort, cut."""
    kept = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    if settings.top_k > 0:
        kept = kept[: settings.top_k]
    if settings.top_p < 1.0:
        wanted = settings.top_p * math.fsum(math.exp(scaled[token]) for token in kept)
        num_kept, mass = 0, 0.0
        while mass < wanted and num_kept < len(kept):
            mass += math.exp(scaled[kept[num_kept]])
            num_kept += 1
        kept = kept[:num_kept]
    if settings.min_p > 0.0:
        kept = [token for token in kept if scaled[token] >= math.log(settings.min_p)]
    return kept


def reference_law(logits: Logits, settings: SequenceSettings) -> np.ndarray:
    scaled = reference_scaled(logits, settings)
    law = np.zeros(len(scaled))
    kept = reference_kept(scaled, settings)
    law[kept] = np.exp(np.array(scaled)[kept])
    return law / law.sum()
