"""A rank's share of a model, as transformers' own plan for the family divides it.

Query, key and value heads and the middle of the MLP are divided; what comes behind them is summed
over all ranks. Embeddings, norms and biases of sums are whole everywhere; each rank computes its
part of the vocabulary's logits, which rank 0 collects. transformers reads of a checkpoint only what
the plan gives this rank (`tp_plan`, `DistributedConfig`); how the shares work together is ours,
since its own hooks sum in an order that depends on the width of a pass.
"""

import math
import re
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.distributed.configuration_utils import DistributedConfig

from paceline.engine.attention_shape import AttentionShape
from paceline.engine.linear import LinearFactory
from paceline.engine.module_linears import ModuleLinears
from paceline.engine.ranks.group import RankGroup
from paceline.engine.ranks.linears import ShardedLinears, Style
from paceline.errors import InvalidConfig

_WHOLE = frozenset({"replicate", "replicated_with_grad_allreduce"})
"""Styles of what every rank has all of."""


def distributed_config(name: str, config: PretrainedConfig, size: int) -> DistributedConfig:
    """How to load the model `name` for one of `size` ranks; raises `InvalidConfig`."""
    text_config = config.get_text_config()
    shape = AttentionShape.of(text_config)
    plan: dict[str, str] = getattr(text_config, "base_model_tp_plan", None) or {}
    if not plan:
        raise InvalidConfig(
            f"tensor_parallel_size is {size}, but transformers has no plan to divide models of the "
            f"type {text_config.model_type!r}; expected 1"
        )
    parts = {
        "attention heads": shape.num_heads,
        "key heads": shape.num_kv_heads,
        "inner features of its MLP": text_config.intermediate_size,
    }
    if any(number % size for number in parts.values()):
        divisor = math.gcd(*parts.values())
        possible = ", ".join(str(n) for n in range(1, divisor + 1) if divisor % n == 0)
        listed = ", ".join(f"{number} {part}" for part, number in parts.items())
        raise InvalidConfig(
            f"tensor_parallel_size is {size}; the model {name!r} has {listed}, which have to be "
            f"divided evenly: expected one of {possible}"
        )
    # A lookup of whole embeddings needs no exchange; a head that is tied to them shares them.
    whole = ["model.embed_tokens", *(["lm_head"] if text_config.tie_word_embeddings else [])]
    return DistributedConfig(tp_size=size, tp_plan=dict.fromkeys(whole, "replicate"))


class RankShare:
    """What this rank holds of a model that was loaded with `distributed_config`.

    Turns its parameters into plain tensors, this rank's part of each. Raises `InvalidConfig` for a
    plan with parts that are not known here.
    """

    def __init__(self, model: PreTrainedModel, group: RankGroup) -> None:
        self.group = group
        self._is_attention_divided = False
        self._styles: dict[nn.Linear, Style] = {}
        plan = model.tp_plan
        for name, module in model.named_modules():
            _keep_own_part(module)
            style = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name), "replicate")
            if isinstance(module, nn.Linear):
                # transformers' hook for the exchange goes; ours comes with the layer.
                module.__dict__.pop("forward", None)
                self._styles[module] = _style(name, style)
                self._is_attention_divided |= name.endswith("k_proj") and style == "colwise"
            elif style not in _WHOLE:
                raise _unsupported(name, style)

    def shape(self, config: PretrainedConfig) -> AttentionShape:
        """The heads of this rank."""
        shape = AttentionShape.of(config)
        if not self._is_attention_divided:
            return shape
        size = self.group.size
        return replace(
            shape, num_heads=shape.num_heads // size, num_kv_heads=shape.num_kv_heads // size
        )

    def linears(self, factory: LinearFactory) -> ModuleLinears:
        """Makes this rank's linear layers."""
        return ShardedLinears(factory, self.group, self._styles)

    def let_shapes_fit(self) -> None:
        """Give the modules a `forward` that computes nothing but the shape of a layer's result.

        For a look at what a model's own code does: no other rank takes part in it.
        """
        for module, style in self._styles.items():
            width = module.weight.shape[0] if style is Style.COLUMNS else module.out_features
            hooked: Any = module
            hooked.forward = _zeros(width)


def _style(name: str, style: str) -> Style:
    if name == "lm_head":
        return Style.TIED_HEAD if style in _WHOLE else Style.HEAD
    if style in _WHOLE:
        return Style.WHOLE
    try:
        return Style(style)
    except ValueError:
        raise _unsupported(name, style) from None


def _unsupported(name: str, style: str) -> InvalidConfig:
    return InvalidConfig(
        f"transformers' plan divides {name!r} as {style!r}, which is not supported; expected "
        "tensor_parallel_size 1"
    )


def _keep_own_part(module: nn.Module) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        if isinstance(parameter, DTensor):
            own: Tensor = parameter.to_local()
            setattr(module, name, nn.Parameter(own.detach(), requires_grad=False))


def _zeros(width: int) -> Any:
    return lambda x: x.new_zeros((*x.shape[:-1], width))
