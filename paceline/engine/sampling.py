"""The token that a row of logits and a sequence's settings stand for, and the law it follows.

Knows nothing about models, drafts or rounds. Draft and target call the same functions, and the
target's answer is final: it depends on the row, the settings, the position and the tokens before
it, on nothing else.

Order: bias, penalties and bans (`paceline.engine.logits_processing`). At temperature 0 the highest
logit wins. Above, logits are divided by the temperature; top-k, then top-p over what is left, then
min-p keep their tokens, as in transformers; the kept token with the highest sum of scaled logit and
noise wins. Equal values rank by token id, lowest first, everywhere: exactly k tokens stay after
top-k, and top-p keeps the shortest head whose share is at least `top_p`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.engine.logits_processing import (
    Logits,
    ProcessedLogits,
    TokenMask,
    processed_logits,
)
from paceline.engine.noise import (
    MAX_GUMBEL,
    MIN_GUMBEL,
    TokenIds,
    Uniforms,
    gumbel_of,
    uniform,
    uniform_row,
)
from paceline.errors import InvalidRequest
from paceline.rounds import SequenceSettings

ScaledLogits = NDArray[np.float64]
"""Logits over temperature, less their maximum: the best token has 0, banned ones minus infinity."""
Law = NDArray[np.float64]
"""Probabilities [V] that sum to 1; 0 for tokens that are banned or filtered out."""

_GROUP_SIZE = 64
_BINS_PER_UNIT = 8.0
_MAX_BIN = 400.0
"""The last bin takes all that is 50 or more behind the best: less than 1e-21 of its probability."""

_SUBSET_SHARE = 3
"""A listed token costs up to three times as much noise time as a token of a whole row."""

_COLDEST = float(np.finfo(np.float32).tiny)

HOPELESS = MIN_GUMBEL - MAX_GUMBEL
"""No noise makes up for a distance to the best token that is larger than this."""


def choose_token(
    logits: Logits,  # [V]; not changed
    settings: SequenceSettings,
    position: int,
    context: Sequence[int],
    allowed: TokenMask | None = None,  # [V]
) -> int:
    """The token at `position`, the absolute index in the sequence (prompt included).

    `context` are the token ids before `position`; they count for penalties only. `allowed` are the
    tokens that the sequence's grammar allows behind them.

    Raises `InvalidRequest` when the settings ban every token that the model allows, and
    `FloatingPointError` when the logits hold NaN or plus infinity.
    """
    processed = processed_logits(logits, settings, position, context, allowed)
    best = _best(processed, position)
    if settings.temperature == 0.0:
        return best
    return _choose_with_noise(_scaled(processed, best, settings), settings, position)


class RankedToken(NamedTuple):
    """A token among those that may stand in a place."""

    token_id: int
    share: float
    """How likely it is, as far as a row can tell: shares of all tokens sum to 1, about."""


def ranked_tokens(
    logits: Logits,  # [V]; not changed
    settings: SequenceSettings,
    position: int,
    count: int,
    context: Sequence[int],
    allowed: TokenMask | None = None,  # [V]
) -> list[RankedToken]:
    """What `choose_token` chooses, and the tokens that come next by logit, or by logit and noise.

    Up to `count`; banned ones and those that filters drop are never among them. Shares are those of
    the logits at temperature 0, and above of the scaled logits with their noise, which is about how
    likely they are the choice of a model that agrees nearly. Takes and raises what `choose_token`
    takes and raises.
    """
    processed = processed_logits(logits, settings, position, context, allowed)
    best = _best(processed, position)
    if settings.temperature == 0.0:
        scores = np.subtract(processed, processed[best], dtype=np.float64)
        token_ids = np.flatnonzero(scores >= _lowest_of_highest(scores, count))
        total = float(np.exp(scores).sum())
        scores = scores[token_ids]
    else:
        token_ids, scores = _scored(_scaled(processed, best, settings), settings, position, count)
        scores = scores - scores.max()
        total = float(np.exp(scores).sum())
    order = np.argsort(-scores, kind="stable")[:count]
    return [
        RankedToken(int(token_ids[i]), math.exp(scores[i]) / total)
        for i in order
        if scores[i] > -math.inf
    ]


def token_law(
    logits: Logits,  # [V]; not changed
    settings: SequenceSettings,
    position: int,
    context: Sequence[int],
    allowed: TokenMask | None = None,  # [V]
) -> Law:
    """The law of what `choose_token` chooses over all seeds; at temperature 0 one token has it all.

    Takes and raises what `choose_token` takes and raises.
    """
    processed = processed_logits(logits, settings, position, context, allowed)
    best = _best(processed, position)
    law = np.zeros(len(processed))
    if settings.temperature == 0.0:
        law[best] = 1.0
        return law
    scaled = _scaled(processed, best, settings)
    kept_ids = _kept_ids(scaled, settings, lowest=-math.inf)
    weights = np.exp(scaled[kept_ids])
    law[kept_ids] = weights / weights.sum()
    return law


def confidence(
    logits: Logits,  # [V]; not changed
    settings: SequenceSettings,
    position: int,
    context: Sequence[int],
    allowed: TokenMask | None = None,  # [V]
) -> float:
    """The probability of the most likely token before filters, at temperature 1 for a greedy one.

    Takes and raises what `choose_token` takes and raises. Rounded: nothing but speed depends on it.
    """
    processed = processed_logits(logits, settings, position, context, allowed)
    best = _best(processed, position)
    scaled = np.subtract(processed, processed[best], dtype=np.float32, casting="same_kind")
    with np.errstate(over="ignore"):  # far behind at a low temperature: minus infinity
        # Not below what single precision has: that would be 0, and 0 / 0 no confidence.
        scaled /= np.float32(max(settings.temperature, _COLDEST) if settings.temperature else 1.0)
    return 1.0 / float(np.exp(scaled).sum())


def _best(processed: ProcessedLogits, position: int) -> int:
    """The token with the highest logit, which is finite."""
    best = int(processed.argmax())  # the first of equals; of NaN, if there is one
    highest = float(processed[best])
    if highest == -math.inf:
        raise InvalidRequest(
            f"No token is left to choose at position {position}: logit_bias, min_tokens and the "
            "grammar ban every token; expected at least one to remain.",
            field="logit_bias",
        )
    if not math.isfinite(highest):
        raise FloatingPointError(
            f"The logits of position {position} hold {highest}; expected finite numbers."
        )
    return best


def _scaled(processed: ProcessedLogits, best: int, settings: SequenceSettings) -> ScaledLogits:
    scaled: ScaledLogits = np.subtract(processed, processed[best], dtype=np.float64)
    scaled /= settings.temperature
    return scaled


def _choose_with_noise(scaled: ScaledLogits, settings: SequenceSettings, position: int) -> int:
    token_ids, scores = _scored(scaled, settings, position, 1)
    return int(token_ids[scores.argmax()])


def _scored(
    scaled: ScaledLogits, settings: SequenceSettings, position: int, count: int
) -> tuple[TokenIds, ScaledLogits]:
    """The tokens that may be among the `count` highest with noise, ascending, and their scores."""
    kept_ids = _kept_ids(scaled, settings, lowest=HOPELESS)
    is_unfiltered = settings.top_k == 0 and settings.top_p == 1.0 and settings.min_p == 0.0
    if is_unfiltered and len(kept_ids) * _SUBSET_SHARE > len(scaled):
        row = uniform_row(settings.seed, settings.choice, position, len(scaled))
        return _rivals(scaled, row, count)
    uniforms = uniform(settings.seed, settings.choice, position, kept_ids)
    rivals, scores = _rivals(scaled[kept_ids], uniforms, count)
    return kept_ids[rivals], scores


def _kept_ids(scaled: ScaledLogits, settings: SequenceSettings, lowest: float) -> TokenIds:
    """The tokens that the filters keep, ascending, less those with a value below `lowest`.

    Each filter keeps a head of the ranking, so a lowest value and a number say it.
    """
    if settings.min_p > 0.0:
        lowest = max(lowest, math.log(settings.min_p))
    num_kept = len(scaled)
    if 0 < settings.top_k < num_kept or settings.top_p < 1.0:
        cut = _cut(scaled, settings.top_k, settings.top_p)
        num_kept, lowest = cut.num_kept, max(lowest, cut.lowest)
    kept_ids = np.flatnonzero(scaled >= lowest)
    num_surplus = len(kept_ids) - num_kept
    if num_surplus > 0:
        tied = np.flatnonzero(scaled[kept_ids] == lowest)
        kept_ids = np.delete(kept_ids, tied[-num_surplus:])
    return kept_ids


class _Cut(NamedTuple):
    """Where a ranking ends: `num_kept` tokens are kept, the last of them has the value `lowest`."""

    num_kept: int
    lowest: float


def _cut(scaled: ScaledLogits, top_k: int, top_p: float) -> _Cut:
    """What top-k and then top-p keep."""
    if not 0 < top_k < len(scaled):
        return _cut_at_share(scaled, top_p)
    ranked = np.sort(_with_highest(scaled, top_k))[: -top_k - 1 : -1]
    if top_p < 1.0:
        return _cut_at_share(ranked, top_p)
    return _Cut(top_k, float(ranked[-1]))


def _with_highest(scaled: ScaledLogits, count: int) -> ScaledLogits:
    """Some values, the `count` highest among them: sorting all is slow.

    As many group maxima are at least as high as the lowest value taken, so no more are needed.
    """
    num_groups = len(scaled) // _GROUP_SIZE
    if count > num_groups:
        return scaled
    maxima = scaled[: num_groups * _GROUP_SIZE].reshape(_GROUP_SIZE, num_groups).max(axis=0)
    highest: ScaledLogits = scaled[scaled >= np.sort(maxima)[-count]]
    return highest


def _cut_at_share(scaled: ScaledLogits, top_p: float) -> _Cut:
    """The shortest head of the ranking with a share of `top_p` of the probability.

    Values are counted in bins, and only the bin with the cut is sorted: sorting all is slow.
    """
    bins = np.minimum(scaled * -_BINS_PER_UNIT, _MAX_BIN).astype(np.int64)
    mass_through_bin = np.cumsum(np.bincount(bins, np.exp(scaled)))
    mass = top_p * mass_through_bin[-1]
    cut_bin = int(np.searchsorted(mass_through_bin, mass))
    mass_above = mass_through_bin[cut_bin - 1] if cut_bin else 0.0
    ranked = np.sort(scaled[bins == cut_bin])[::-1]
    mass_up_to = mass_above + np.cumsum(np.exp(ranked))
    index = min(int(np.searchsorted(mass_up_to, mass)), len(ranked) - 1)
    return _Cut(int(np.count_nonzero(bins < cut_bin)) + index + 1, float(ranked[index]))


def _rivals(scaled: ScaledLogits, uniforms: Uniforms, count: int) -> tuple[TokenIds, ScaledLogits]:
    """Indices that may have one of the `count` highest sums of scaled logit and noise, and those.

    Noise needs two logarithms, so it is computed only for those that can win. From -log u >= 1 - u
    follows that a token whose noise reaches x has 1 - u <= exp(-x); and x must at least make up
    for the distance to the lowest score of tokens that are known, those with the highest logits.
    """
    if count == 1:
        leaders = scaled.argmax(axis=-1, keepdims=True)
    else:
        leaders = np.flatnonzero(scaled >= max(_lowest_of_highest(scaled, count), HOPELESS))
    score_to_beat = float((scaled[leaders] - np.log(-np.log(uniforms[leaders]))).min())
    with np.errstate(over="ignore"):  # far behind: minus infinity in single precision
        distance = np.subtract(scaled, score_to_beat, dtype=np.float32, casting="same_kind")
    reach = np.exp(distance)
    reach *= np.float32(1.001)  # far above the rounding of the single-precision estimate
    rivals = np.flatnonzero(1.0 - uniforms <= reach)
    return rivals, scaled[rivals] + gumbel_of(uniforms[rivals])


def _lowest_of_highest(values: ScaledLogits, count: int) -> float:
    """The lowest of the `count` highest values."""
    count = min(count, len(values))
    return float(np.partition(values, -count)[-count])
