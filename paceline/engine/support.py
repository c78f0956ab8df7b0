"""Which models from transformers can be run exactly, and why the others are refused.

A model qualifies when all that mixes positions goes through our attention, and all that multiplies
matrices is a linear layer. Whatever else it asks for is refused by name when it is loaded: a model
that is computed almost right is worse than none.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from paceline.engine.device import CPU, DTYPES, Device
from paceline.errors import InvalidConfig

VERIFIED_MODEL_TYPES = frozenset(
    {"gemma", "gemma3_text", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3"}
    | {"smollm3"}
)
"""Families whose tiny random models our tests compare with transformers' own forward pass."""
ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn", "proportional"})
"""Rotary embeddings whose frequencies are the same for every position and batch."""
LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


def check_supported(model: PreTrainedModel, device: Device = CPU) -> None:
    """Raise `InvalidConfig`, naming the feature, unless the device can run the model exactly."""
    config = model.config
    name = f"The model type '{config.model_type}'"
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if len(dtypes) != 1 or not dtypes <= {DTYPES[name] for name in device.dtypes}:
        listed = ", ".join(sorted(str(dtype) for dtype in dtypes))
        expected = " or ".join(device.dtypes)
        raise InvalidConfig(f"The model's dtype is {listed}; {expected} was expected.")
    if model.device != device.torch_device:
        raise InvalidConfig(
            f"The model's device is {model.device}; {device.torch_device} was expected."
        )
    for rope_type in _rope_types(config):
        if rope_type not in ROPE_TYPES:
            raise InvalidConfig(
                f"{name} asks for rope type '{rope_type}', which depends on the whole batch or is "
                f"not known; expected one of {', '.join(sorted(ROPE_TYPES))}."
            )
    for layer_type in getattr(config, "layer_types", None) or ():
        if layer_type not in LAYER_TYPES:
            raise InvalidConfig(
                f"{name} has layers of type '{layer_type}'; expected full_attention or "
                "sliding_attention."
            )
    for setting in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(config, setting, None) is not None:
            raise InvalidConfig(
                f"{name} asks for a softcap ('{setting}' is {getattr(config, setting)}); this is "
                "not supported."
            )
    for parameter_name in _foreign_matrices(model):
        raise InvalidConfig(
            f"{name} has the weight '{parameter_name}' outside of linear layers and embeddings "
            "(as state-space and mixture-of-experts layers do); this is not supported."
        )
    if config.model_type not in VERIFIED_MODEL_TYPES:
        raise InvalidConfig(
            f"{name} has not been verified to run exactly; expected one of "
            f"{', '.join(sorted(VERIFIED_MODEL_TYPES))}."
        )


def check_attention_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise `InvalidConfig` if a layer asks attention for something that ours does not do."""
    for name, value in arguments.items():
        if value is not None and value is not False and name not in _HARMLESS_ARGUMENTS:
            raise InvalidConfig(
                f"The model's attention uses the argument '{name}', which is not supported."
            )


def check_attention_layers(
    windows: Mapping[int, int | None],  # what each layer asked our attention for
    config: PreTrainedConfig,
) -> None:
    """Raise `InvalidConfig` unless every layer used our attention, and with its sliding window."""
    missing = sorted(set(range(config.num_hidden_layers)) - set(windows))
    if missing:
        raise InvalidConfig(
            f"Layer {missing[0]} of the model type '{config.model_type}' does not use the "
            "attention function it is given; this is not supported."
        )
    for layer, layer_type in enumerate(getattr(config, "layer_types", None) or ()):
        if (layer_type == "sliding_attention") != (windows[layer] is not None):
            raise InvalidConfig(
                f"Layer {layer} of the model type '{config.model_type}' is of type '{layer_type}' "
                f"but asks for a window of {windows[layer]} tokens."
            )


_HARMLESS_ARGUMENTS = frozenset({"position_ids", "is_causal", "output_hidden_states"})
"""Arguments that say nothing new: causal attention by position is what ours does."""


def _rope_types(config: PreTrainedConfig) -> Iterator[str]:
    parameters = getattr(config, "rope_parameters", None) or {}
    by_layer_type = [value for value in parameters.values() if isinstance(value, dict)]
    for one in by_layer_type or [parameters]:
        yield one.get("rope_type", "default")


def _foreign_matrices(model: nn.Module) -> Iterator[str]:
    for module_name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim > 1:
                yield f"{module_name}.{name}"
