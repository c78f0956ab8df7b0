"""Exact linear layers in the place of a model's own."""

from typing import Protocol

import torch
from torch import nn
from transformers import PretrainedConfig

from paceline.engine.attention_shape import AttentionShape
from paceline.engine.linear import ExactLinear, LinearFactory


class ModuleLinears(Protocol):
    """Makes the linear layers of a model that runs."""

    def of(self, *modules: nn.Linear) -> ExactLinear:
        """One layer of all the modules' outputs; the modules' own weights are dropped."""


class Share(Protocol):
    """A process's part of a model that several processes run together."""

    def shape(self, config: PretrainedConfig) -> AttentionShape:
        """The heads of this part."""

    def linears(self, factory: LinearFactory) -> ModuleLinears:
        """Makes the layers of this part."""

    def let_shapes_fit(self) -> None:
        """Give the modules a `forward` that computes nothing but the shape of a layer's result."""


class WholeLinears:
    """Of a model that one process holds."""

    def __init__(self, factory: LinearFactory) -> None:
        self._factory = factory

    def of(self, *modules: nn.Linear) -> ExactLinear:
        """One layer of all the modules' outputs; the modules' own weights are dropped."""
        weight = torch.cat([module.weight.data for module in modules])
        biases = [module.bias.data for module in modules if module.bias is not None]
        drop_weights(modules)
        return self._factory.make(weight, torch.cat(biases) if biases else None)


def drop_weights(modules: tuple[nn.Linear, ...]) -> None:
    """Let go of what has been packed, where nobody else holds it."""
    for module in modules:
        module.weight = nn.Parameter(module.weight.to("meta"), requires_grad=False)
