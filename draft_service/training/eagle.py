"""An EAGLE-3 head that can be trained (arXiv 2503.01840): its weights, and its layer on many rows.

The arithmetic is that of `paceline/engine/eagle_head.py`, here for all rows of many sequences at
once and with gradients. `unrolling.py` runs it several times over its own output.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from draft_service.training.token_residual import FEATURE_SCALE, TokenResidual
from paceline.engine.head_rotary import rotary_embedding, rotated
from paceline.errors import InvalidConfig
from paceline.heads.eagle_config import HeadConfig

_PROJECTED = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
"""Matrices of a layer that take an embedding too in a head."""
_COPIED = (
    *("post_attention_layernorm", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of queries `[num_rows, num_heads, head_dim]`, keys and values `[num_rows, num_kv_heads, …]`,
all turned to their positions: what each query gathers, `[num_rows, num_heads * head_dim]`."""


class EagleTrainee:
    """The head's weights and what it computes."""

    def __init__(
        self,
        config: HeadConfig,
        weights: dict[str, Tensor],
        embedding: Tensor,
        residual: TokenResidual | None = None,
    ) -> None:
        """`weights` by the names of a checkpoint, those of the layer without their prefix.

        `embedding`: the target's, which is not trained. `residual`: None for EAGLE-3 as published.
        """
        self.config = config
        self.weights = weights
        self._embedding = embedding
        self._residual = residual
        self._rotary = rotary_embedding(config).to(embedding.device)

    def fed(self, features: Tensor) -> Tensor:
        """`[num_rows, feature_size]` of the target as states of the head."""
        states = F.linear(features, self.weights["fc.weight"])
        return states * self.weights[FEATURE_SCALE] if FEATURE_SCALE in self.weights else states

    def layer(self, states: Tensor, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The layer's output before the last norm, `[num_rows, hidden_size]`."""
        config = self.config
        embedded = F.embedding(token_ids, self._embedding)
        normed = self._norm(states, "hidden_norm")
        both = torch.cat((self._norm(embedded, "input_layernorm"), normed), dim=-1)
        query, key, value = (
            self._linear(both, f"self_attn.{name}_proj").view(len(both), -1, config.head_dim)
            for name in "qkv"
        )
        cos, sin = self._rotary(both, positions[None])
        attended = attend(rotated(query, cos, sin), rotated(key, cos, sin), value)
        residual = normed if config.norm_before_residual else states
        if self._residual is not None:
            residual = residual + self._residual(token_ids, embedded)
        states = residual + self._linear(attended, "self_attn.o_proj")
        normed = self._norm(states, "post_attention_layernorm")
        gated = F.silu(self._linear(normed, "mlp.gate_proj")) * self._linear(normed, "mlp.up_proj")
        return states + self._linear(gated, "mlp.down_proj")

    def normed(self, states: Tensor) -> Tensor:
        """Outputs of the layer as the output matrix takes them."""
        return self._norm(states, "norm")

    def _linear(self, states: Tensor, name: str) -> Tensor:
        return F.linear(states, self.weights[f"{name}.weight"])

    def _norm(self, states: Tensor, name: str) -> Tensor:
        weight = self.weights[f"{name}.weight"]
        return F.rms_norm(states, weight.shape, weight, self.config.rms_norm_eps)


def initial_weights(module: PreTrainedModel, num_features: int) -> dict[str, Tensor]:
    """The target's last layer, reading the last of the features and, at first, no embedding.

    Raises:
        InvalidConfig: the layer is not made as Llama's are.
    """
    decoder: Any = module.base_model
    layer = {name: tensor.float() for name, tensor in decoder.layers[-1].state_dict().items()}
    for name in ("input_layernorm", *_PROJECTED, *_COPIED):
        if f"{name}.weight" not in layer:
            raise InvalidConfig(
                f"the target {module.config.model_type!r} has no {name}.weight in its last layer; "
                "expected layers like Llama's to begin an EAGLE head from"
            )
    hidden_size = module.config.hidden_size
    nothing = torch.zeros(hidden_size, (num_features - 1) * hidden_size)
    weights = {
        "fc.weight": torch.cat((nothing, torch.eye(hidden_size)), dim=1),
        "input_layernorm.weight": torch.ones(hidden_size),
        "hidden_norm.weight": layer["input_layernorm.weight"],
        "norm.weight": decoder.norm.weight.float(),
    }
    for name in _PROJECTED:
        own = layer[f"{name}.weight"]
        weights[f"{name}.weight"] = torch.cat((torch.zeros_like(own), own), dim=1)
    for name in _COPIED:
        weights[f"{name}.weight"] = layer[f"{name}.weight"]
    return {name: tensor.detach().clone().to(module.device) for name, tensor in weights.items()}
