"""Any supported model as transformers computes it, with our parts in the places that matter.

Linear layers, activations and rotary embeddings keep their modules and get exact `forward`
functions, so that hooks on the modules still run; attention is ours by name. Slower than
`FusedDecoder`, but it follows whatever a family's own code does between those parts.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.activations import ACT2CLS

from paceline.engine.attention_shape import AttentionShape
from paceline.engine.elementwise import RotaryTable, apply_row_exact
from paceline.engine.features import packed_features
from paceline.engine.kv_layout import RowAttention
from paceline.engine.linear import ExactLinear
from paceline.engine.module_linears import ModuleLinears
from paceline.engine.support import check_attention_arguments, check_attention_layers
from paceline.errors import InvalidConfig

ATTENTION_NAME = "paceline"
_ACTIVATIONS: tuple[Any, ...] = tuple(
    entry[0] if isinstance(entry, tuple) else entry for entry in ACT2CLS.values()
)


class HFDecoder:
    """Runs the model's own `forward` on one packed row of tokens."""

    def __init__(
        self,
        model: PreTrainedModel,
        linears: ModuleLinears,
        max_length: int,
        feature_layers: Sequence[int],
    ) -> None:
        self._model = model
        self._feature_layers = feature_layers
        for module in model.modules():
            if isinstance(module, nn.Linear):
                _make_exact(module, linears)
            elif isinstance(module, _ACTIVATIONS):
                _make_row_exact(module)
            elif type(module).__name__.endswith("RotaryEmbedding"):
                module.forward = RotaryTable(module.forward, max_length)

    def run(
        self,
        token_ids: Tensor,  # [N]
        positions: Tensor,  # [N]
        wanted_rows: Tensor,  # [R]
        attention_pass: RowAttention,
    ) -> tuple[Tensor, Tensor]:
        """Return the logits `[R, V]` and the features `[N, feature_size]`."""
        output = self._model(
            input_ids=token_ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=wanted_rows,
            attention_pass=attention_pass,
            output_hidden_states=bool(self._feature_layers),
        )
        states = [output.hidden_states[index][0] for index in self._feature_layers]
        return output.logits[0], packed_features(states)


@torch.inference_mode()
def check_attention(model: PreTrainedModel, shape: AttentionShape) -> dict[int, int | None]:
    """Return each layer's window; raise `InvalidConfig` for what our attention does not do."""
    model.config._attn_implementation = ATTENTION_NAME
    probe = _AttentionProbe(shape)
    model(
        input_ids=torch.zeros(1, 2, dtype=torch.long, device=model.device),
        position_ids=torch.arange(2, device=model.device)[None],
        use_cache=False,
        attention_pass=probe,
    )
    check_attention_layers(probe.windows, model.config)
    return probe.windows


class _AttentionProbe:
    """Notes what it is asked for and attends to nothing."""

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        self.windows: dict[int, int | None] = {}

    def attend(
        self, layer: int, query: Tensor, key_value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        shape = self._shape
        expected = (shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.head_dim)
        found = (query.shape[1], key_value.shape[2], key_value.shape[3], query.shape[2])
        if found != expected:
            raise InvalidConfig(
                f"Layer {layer} has {found[0]} heads over {found[1]} key heads of size {found[2]}; "
                f"its configuration says {expected[0]} over {expected[1]} of size {expected[2]}."
            )
        self.windows[layer] = window
        return query.flatten(1)


def _attend(
    module: nn.Module,
    query: Tensor,  # [1, num_heads, N, head_dim]
    key: Tensor,  # [1, num_kv_heads, N, head_dim]
    value: Tensor,  # [1, num_kv_heads, N, head_dim]
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    attention_pass: Any = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in place of its own attention function."""
    check_attention_arguments({"attention_mask": attention_mask, **arguments})
    if value.shape != key.shape:
        raise InvalidConfig(
            f"The model's attention has values of shape {tuple(value.shape)} for keys of shape "
            f"{tuple(key.shape)}; equal shapes were expected."
        )
    key_value = torch.stack((key[0], value[0])).permute(2, 0, 1, 3)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: Any = module.layer_idx
    rows: Tensor = attention_pass.attend(
        layer, query[0].transpose(0, 1), key_value, scale, sliding_window
    )
    return rows.view(1, query.shape[2], query.shape[1], query.shape[3]), None


def _make_exact(module: nn.Linear, linears: ModuleLinears) -> None:
    hooked: nn.Module = module
    hooked.forward = _on_rows(linears.of(module))


def _on_rows(linear: ExactLinear) -> Any:
    def forward(x: Tensor) -> Any:
        return linear(x.flatten(0, -2)).unflatten(0, x.shape[:-1])

    return forward


def _make_row_exact(module: nn.Module) -> None:
    function = module.forward
    module.forward = lambda x: apply_row_exact(function, x)


AttentionInterface.register(ATTENTION_NAME, _attend)
