"""Settings that sampling cannot compute with, found before a sequence begins.

A coordinator refuses them already; but one number that is none, in a round of whoever else reaches
a worker, would fail the pass that all sequences share. The bounds here are those of arithmetic;
what a client may ask for is narrower. Pure.
"""

import math

from paceline.rounds import RoundError, RoundErrorReason, SequenceSettings


def unusable(settings: SequenceSettings) -> RoundError | None:
    """What is wrong with settings on any worker."""
    bounds = {
        "temperature": (0.0, math.inf),
        "top_p": (0.0, 1.0),
        "min_p": (0.0, 1.0),
        "presence_penalty": (-math.inf, math.inf),
        "frequency_penalty": (-math.inf, math.inf),
        "repetition_penalty": (0.0, math.inf),
    }
    for name, (least, most) in bounds.items():
        value = getattr(settings, name)
        if not (math.isfinite(value) and least <= value <= most):
            return _error(name, value, f"a finite number from {least:g} to {most:g}")
    for token_id, bias in settings.logit_bias:
        if not bias < math.inf:
            return _error("logit_bias", bias, f"a number for token {token_id}")
    return None


def _error(name: str, value: float, expected: str) -> RoundError:
    message = f"settings.{name}: is {value}; expected {expected}."
    return RoundError(RoundErrorReason.INVALID_ARGUMENT, message)
