"""Trains Medusa heads (arXiv 2401.10774) and saves them in vLLM's layout.

Head k says the token k + 2 places behind the one whose last state it is fed with, so heads are to
`distil` what the steps of an unrolled head are. They begin as the target's own output, a residual
block of nothing, and share the target's output matrix.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from draft_service.training.batches import Batch, Feed
from draft_service.training.distillation import distil
from draft_service.training.material import Material
from draft_service.training.saved_head import half, save_head
from draft_service.training.unrolling import NextTokens

_DESCRIPTION = (
    "Medusa heads (arXiv 2401.10774) in vLLM's layout: for `paceline serve --drafter medusa --head "
    "<this directory>` and for vLLM."
)


class MedusaTrainee:
    """One residual block for each head, as `distil` teaches it."""

    def __init__(self, num_heads: int, columns: slice, device: torch.device) -> None:
        """`columns`: where in the features the last state is."""
        self.feed = Feed(columns)
        self.max_drafts: int | None = num_heads
        hidden_size = columns.stop - columns.start
        self.weights: dict[str, Tensor] = {}
        for head in range(num_heads):
            name = f"blocks.{head}.layers.0"
            self.weights[f"{name}.weight"] = torch.zeros(hidden_size, hidden_size, device=device)
            self.weights[f"{name}.bias"] = torch.zeros(hidden_size, device=device)

    def predictions(self, batch: Batch, num_steps: int, next_tokens: NextTokens) -> list[Tensor]:
        """As `Trainee` says; which tokens are between does not matter."""
        states = batch.features
        return [states + F.silu(self._linear(states, head)) for head in range(num_steps)]

    def _linear(self, states: Tensor, head: int) -> Tensor:
        name = f"blocks.{head}.layers.0"
        return F.linear(states, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])


def train_medusa(material: Material) -> Path:
    """Train and save the heads; returns their directory."""
    loaded, num_heads = material.loaded, material.settings.unrolled_steps
    hidden_size, target_ids = material.features.hidden_size, material.target_ids
    width = material.features.states.shape[1]
    trainee = MedusaTrainee(num_heads, slice(width - hidden_size, width), loaded.module.device)
    write_card = distil(
        material, trainee, num_heads, f"Medusa heads for {loaded.name}", _DESCRIPTION
    )
    config = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": hidden_size,
        "vocab_size": len(material.output_matrix),
        "num_heads": num_heads,
        "num_hidden_layers": 1,
        "truncated_vocab_size": len(target_ids),
        "original_lm_head": True,
        "medusa_fc_bias": True,
    }
    tensors = {name: half(weight) for name, weight in trainee.weights.items()}
    tensors["lm_head.weight"] = half(material.output_matrix[target_ids])
    tensors["token_map"] = target_ids.cpu()
    return save_head(material.head_directory, config, tensors, write_card)
