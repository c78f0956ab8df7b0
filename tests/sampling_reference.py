"""The choice of a token by the book: slow, obvious, and independent of the product's sampler."""

import math
from collections.abc import Sequence

import numpy as np

from paceline.engine.logits_processing import Logits
from paceline.engine.noise import gumbel
from paceline.rounds import SequenceSettings

BANNED = -math.inf


def reference_token(
    logits: Logits, settings: SequenceSettings, position: int, context: Sequence[int] = ()
) -> int:
    processed = reference_processed(logits, settings, position, context)
    if settings.temperature == 0.0:
        return min(range(len(processed)), key=lambda token: (-processed[token], token))
    scaled = reference_scaled(processed, settings)
    noise = gumbel(settings.seed, settings.choice, position, np.arange(len(logits)))
    scores = {token: scaled[token] + noise[token] for token in reference_kept(scaled, settings)}
    return min(scores, key=lambda token: (-scores[token], token))


def reference_processed(
    logits: Logits, settings: SequenceSettings, position: int, context: Sequence[int]
) -> list[float]:
    """A token at a time: bias, repetition, frequency, presence, the minimum length."""
    said = list(context)[settings.prompt_length :]
    processed = []
    for token, logit in enumerate(logits.tolist()):
        for biased, bias in settings.logit_bias:
            if biased == token:
                logit = logit + bias if bias > -100.0 else BANNED
        if token in context:
            if logit > 0.0:
                logit /= settings.repetition_penalty
            else:
                logit *= settings.repetition_penalty
        logit -= settings.frequency_penalty * said.count(token)
        logit -= settings.presence_penalty * (token in said)
        if position < settings.min_length and token in settings.stop_token_ids:
            logit = BANNED
        processed.append(logit)
    return processed


def reference_scaled(processed: Sequence[float], settings: SequenceSettings) -> list[float]:
    highest = max(processed)
    return [(logit - highest) / settings.temperature for logit in processed]


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


def reference_law(
    logits: Logits, settings: SequenceSettings, position: int = 0, context: Sequence[int] = ()
) -> np.ndarray:
    processed = reference_processed(logits, settings, position, context)
    law = np.zeros(len(processed))
    if settings.temperature == 0.0:
        law[processed.index(max(processed))] = 1.0
        return law
    scaled = reference_scaled(processed, settings)
    kept = reference_kept(scaled, settings)
    law[kept] = np.exp(np.array(scaled)[kept])
    return law / law.sum()
