"""A row of logits as the settings of its sequence change it: bias, penalties, bans.

Knows nothing about temperature, filters or noise (`paceline.engine.sampling`). Nothing here has a
state: what a penalty counts are the tokens before the row, accepted drafts among them, so that a
rejected draft leaves no trace.

Order, as in vLLM and transformers:

1. `logit_bias` is added; a bias of -100 or less bans the token.
2. `repetition_penalty` (arXiv 1909.05858), for tokens anywhere before: positive logits are divided
   by it, negative ones multiplied.
3. `frequency_penalty` times the number of times that a token stands behind the prompt, then
   `presence_penalty`, are subtracted (OpenAI counts behind the prompt only).
4. Below `min_length` the stop tokens are banned. Under a grammar (`paceline.engine.grammar`) all
   tokens are banned that it does not allow, and it has the say over the stop tokens too.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.rounds import SequenceSettings

Logits = NDArray[np.float32]
ProcessedLogits = NDArray[np.float32] | NDArray[np.float64]
"""Double precision as soon as anything was changed; a banned token has minus infinity."""

TokenMask = NDArray[np.bool_]
"""Which tokens [V] are allowed."""

BAN = -100.0
"""A bias from here downwards bans a token (OpenAI: "values like -100 should result in a ban")."""


def processed_logits(
    logits: Logits,  # [V]; not changed
    settings: SequenceSettings,
    position: int,
    context: Sequence[int],  # the token ids before `position`
    allowed: TokenMask | None = None,  # [V], of a grammar
) -> ProcessedLogits:
    """The logits [V] that choose the token at `position`; ids that the model lacks count for none.

    Without anything to change it is `logits` itself.
    """
    if allowed is None and changes_nothing(settings, position):
        return logits
    processed = logits.astype(np.float64)
    for token_id, bias in settings.logit_bias:
        if token_id < len(logits):
            processed[token_id] += bias if bias > BAN else -math.inf
    if _has_penalty(settings):
        _penalize(processed, settings, context)
    if allowed is not None:
        processed[~allowed] = -math.inf
        return processed
    for token_id in _banned_ids(settings, position):
        if token_id < len(logits):
            processed[token_id] = -math.inf
    return processed


def changes_nothing(settings: SequenceSettings, position: int) -> bool:
    """Whether the logits at a position stay as they are, but for what a grammar bans."""
    banned_ids = _banned_ids(settings, position)
    return not (settings.logit_bias or banned_ids or _has_penalty(settings))


def _banned_ids(settings: SequenceSettings, position: int) -> tuple[int, ...]:
    return settings.stop_token_ids if position < settings.min_length else ()


def _has_penalty(settings: SequenceSettings) -> bool:
    return (
        settings.repetition_penalty != 1.0
        or settings.frequency_penalty != 0.0
        or settings.presence_penalty != 0.0
    )


def _penalize(
    processed: NDArray[np.float64], settings: SequenceSettings, context: Sequence[int]
) -> None:
    token_ids = np.array(context, dtype=np.int64)
    if settings.repetition_penalty != 1.0:
        seen, _ = _counts(token_ids, len(processed))
        values = processed[seen]
        penalty = settings.repetition_penalty
        processed[seen] = np.where(values > 0.0, values / penalty, values * penalty)
    if settings.frequency_penalty != 0.0 or settings.presence_penalty != 0.0:
        said, counts = _counts(token_ids[settings.prompt_length :], len(processed))
        processed[said] -= settings.frequency_penalty * counts
        processed[said] -= settings.presence_penalty


def _counts(
    token_ids: NDArray[np.int64], vocab_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The tokens that the model knows, each once, and how often each is there."""
    return np.unique(token_ids[token_ids < vocab_size], return_counts=True)
