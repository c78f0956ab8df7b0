"""Medusa heads (arXiv 2401.10774): each says one of the tokens that follow, all in one step.

They are fed with the target's hidden state of a token, behind the last norm. The target's own
output matrix says from it what the next token is; head i says what the token i + 1 places behind
that one is, without knowing those between. Plain torch.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.engine.device import CPU, Device
from paceline.engine.draft_vocabulary import DraftVocabulary
from paceline.engine.head_linear import HeadLinear
from paceline.engine.medusa_checkpoint import MedusaWeights
from paceline.engine.model import Features, Logits


class MedusaHead:
    """All heads of a target, driven by one thread."""

    def __init__(
        self,
        weights: MedusaWeights,
        vocab_size: int,
        dtype: torch.dtype = torch.float32,
        device: Device = CPU,
    ) -> None:
        """`vocab_size`: tokens of the target, without rows that pad its matrices."""
        self._device = device.torch_device
        self._blocks = [
            [HeadLinear(block.weight, block.bias, dtype, self._device) for block in head]
            for head in weights.blocks
        ]
        self._feature_size = len(weights.blocks[0][0].weight)
        outputs = [HeadLinear(output, None, dtype, self._device) for output in weights.outputs]
        self._outputs = outputs * len(self._blocks) if len(outputs) == 1 else outputs
        self.num_parameters = weights.num_parameters
        """Their own, without what they borrow from the target."""
        self._vocabulary = DraftVocabulary(weights.target_ids, vocab_size)

    @property
    def vocab_size(self) -> int:
        """Number of token ids of the target."""
        return self._vocabulary.vocab_size

    @property
    def num_heads(self) -> int:
        """Tokens that are proposed at once, at most."""
        return len(self._blocks)

    @property
    def feature_size(self) -> int:
        """Numbers per token that they are fed with."""
        return self._feature_size

    @torch.inference_mode()
    def forward(self, features: Features, num_heads: int) -> list[Logits]:
        """What the first heads say of each row of `[N, feature_size]`.

        Returns for each row float32 `[num_heads, vocab_size]`. Tokens that cannot be proposed have
        minus infinity.
        """
        states = torch.from_numpy(features.astype(np.float32)).to(self._device)
        said = [
            self._vocabulary.spread(self._outputs[head](_run(self._blocks[head], states)))
            for head in range(num_heads)
        ]
        return [*np.stack(said, axis=1)]


def _run(blocks: Sequence[HeadLinear], states: Tensor) -> Tensor:
    for block in blocks:
        states = states + F.silu(block(states))
    return states
