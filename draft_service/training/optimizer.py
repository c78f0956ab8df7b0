"""How weights change: Muon for matrices, AdamW for the rest, one learning rate for both.

Muon's step is scaled to the size of AdamW's (arXiv 2502.16982), so that one rate suits both. The
numbers are those that did best for the default model (docs/drafters.md).
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

WARM_UP_STEPS = 30
LAST_SHARE = 0.05
"""Of the highest learning rate, in the last step."""
MAX_GRADIENT_NORM = 1.0
WEIGHT_DECAY = 0.01


class Optimizer:
    """Changes a head's weights by their gradients."""

    def __init__(self, weights: Iterable[Tensor], learning_rate: float, num_steps: int) -> None:
        self._weights = list(weights)
        matrices = [weight for weight in self._weights if weight.ndim == 2]
        others = [weight for weight in self._weights if weight.ndim != 2]
        muon = torch.optim.Muon(matrices, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw")
        adamw = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0)
        self._parts: tuple[torch.optim.Optimizer, ...] = (muon, adamw)
        self._learning_rate = learning_rate
        self._num_steps = num_steps

    def step(self, number: int) -> float:
        """Change the weights and clear the gradients; returns the norm of these.

        `number` of the step, from 0, sets the learning rate.
        """
        norm = torch.nn.utils.clip_grad_norm_(self._weights, MAX_GRADIENT_NORM)
        rate = self._learning_rate * schedule(number, self._num_steps)
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad()
        return float(norm)

    def state(self) -> list[dict[str, Any]]:
        """What a checkpoint keeps."""
        return [part.state_dict() for part in self._parts]

    def load_state(self, state: list[dict[str, Any]]) -> None:
        """The inverse of `state`."""
        for part, own in zip(self._parts, state, strict=True):
            part.load_state_dict(own)


def schedule(number: int, num_steps: int) -> float:
    """The share of the highest learning rate in step `number`: warm-up, then half a cosine."""
    warm_up = min(WARM_UP_STEPS, num_steps // 10)
    if number < warm_up:
        return (number + 1) / (warm_up + 1)
    done = (number - warm_up) / max(1, num_steps - 1 - warm_up)
    return LAST_SHARE + (1 - LAST_SHARE) * 0.5 * (1 + math.cos(math.pi * done))
