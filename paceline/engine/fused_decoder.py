"""Models of the Llama pattern with as few operations as possible.

The same arithmetic as the family's own code, reordered where that saves time: queries, keys and
values come from one linear layer, sums, products and SiLUs happen on the way out of linear layers.
At a few rows a pass is bound by reading the weights, and every operation beside that is overhead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from paceline.engine.attention_shape import AttentionShape
from paceline.engine.elementwise import RotaryTable
from paceline.engine.features import packed_features
from paceline.engine.kv_layout import RowAttention
from paceline.engine.linear import ExactLinear
from paceline.engine.module_linears import ModuleLinears

FUSED_MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})


def can_fuse(model: PreTrainedModel) -> bool:
    """Whether the model's layers are of the pattern that `FusedDecoder` computes."""
    config = model.config
    return config.model_type in FUSED_MODEL_TYPES and config.hidden_act in ("silu", "swish")


@dataclass(frozen=True, slots=True)
class _Norm:
    """RMSNorm (arXiv 1910.07467)."""

    weight: Tensor
    epsilon: float

    @classmethod
    def of(cls, module: Any) -> "_Norm":
        return cls(module.weight.data, module.variance_epsilon)

    def __call__(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's parts."""

    attention_norm: _Norm
    qkv: ExactLinear
    query_norm: _Norm | None
    key_norm: _Norm | None
    output: ExactLinear
    mlp_norm: _Norm
    gate: ExactLinear
    up: ExactLinear
    down: ExactLinear
    scaling: float
    window: int | None


class FusedDecoder:
    """Runs a pass through all layers; `can_fuse(model)` must hold."""

    def __init__(
        self,
        model: PreTrainedModel,
        linears: ModuleLinears,
        shape: AttentionShape,
        windows: dict[int, int | None],
        max_length: int,
        feature_layers: Sequence[int],
    ) -> None:
        body: Any = model.model
        self._shape = shape
        self._embeddings: Tensor = body.embed_tokens.weight.data
        self._layers = [
            _make_layer(layer, linears, windows[index]) for index, layer in enumerate(body.layers)
        ]
        self._feature_layers = feature_layers
        self._norm = _Norm.of(body.norm)
        self._head = linears.of(model.lm_head)
        rotary = RotaryTable(body.rotary_emb.forward, max_length)
        positions = torch.arange(max_length, device=self._embeddings.device)[None]
        cos, sin = rotary(self._embeddings, positions)
        half = shape.head_dim // 2
        self._cos = cos[0, :, None]
        # The first half of a head is turned by minus the sine (arXiv 2104.09864), see `_rotate`.
        self._sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)[:, None]

    def run(
        self,
        token_ids: Tensor,  # [N]
        positions: Tensor,  # [N]
        wanted_rows: Tensor,  # [R]
        attention_pass: RowAttention,
    ) -> tuple[Tensor, Tensor]:
        """Return the logits `[R, V]` and the features `[N, feature_size]`."""
        shape = self._shape
        inputs: dict[int, Tensor] = {}
        heads = (shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim)
        num_rotated = shape.num_heads + shape.num_kv_heads
        cos = self._cos[positions]
        sin = self._sin[positions]
        hidden = self._embeddings[token_ids]
        for index, layer in enumerate(self._layers):
            if index in self._feature_layers:
                inputs[index] = hidden
            qkv = layer.qkv(layer.attention_norm(hidden)).unflatten(1, heads)
            rotated = qkv[:, :num_rotated]
            if layer.query_norm is not None and layer.key_norm is not None:
                query = layer.query_norm(rotated[:, : shape.num_heads])
                rotated = torch.cat((query, layer.key_norm(rotated[:, shape.num_heads :])), dim=1)
            qkv[:, :num_rotated] = _rotate(rotated, cos, sin)
            attended = attention_pass.attend(
                index,
                qkv[:, : shape.num_heads],
                qkv[:, shape.num_heads :].unflatten(1, (2, shape.num_kv_heads)),
                layer.scaling,
                layer.window,
            )
            hidden = layer.output.plus(attended, hidden)
            normed = layer.mlp_norm(hidden)
            gated = layer.up.times(normed, layer.gate.silu(normed))
            hidden = layer.down.plus(gated, hidden)
        if len(self._layers) in self._feature_layers:
            inputs[len(self._layers)] = self._norm(hidden)
        logits = self._head(self._norm(hidden[wanted_rows]))
        return logits, packed_features([inputs[index] for index in self._feature_layers])


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def _make_layer(layer: Any, linears: ModuleLinears, window: int | None) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    has_head_norms = hasattr(attention, "q_norm")
    return _Layer(
        attention_norm=_Norm.of(layer.input_layernorm),
        qkv=linears.of(attention.q_proj, attention.k_proj, attention.v_proj),
        query_norm=_Norm.of(attention.q_norm) if has_head_norms else None,
        key_norm=_Norm.of(attention.k_norm) if has_head_norms else None,
        output=linears.of(attention.o_proj),
        mlp_norm=_Norm.of(layer.post_attention_layernorm),
        gate=linears.of(mlp.gate_proj),
        up=linears.of(mlp.up_proj),
        down=linears.of(mlp.down_proj),
        scaling=attention.scaling,
        window=window,
    )
