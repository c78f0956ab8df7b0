"""Random models of the supported families, so small that a test makes them."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCAB_SIZE = 199
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
}
_OWN: dict[str, dict[str, Any]] = {
    "gemma": {},
    "gemma3_text": {"sliding_window": 40, "query_pre_attn_scalar": 16},
    "granite": {"attention_multiplier": 0.2, "residual_multiplier": 0.7, "logits_scaling": 2.0},
    "llama": {"attention_bias": True, "tie_word_embeddings": True},
    "mistral": {"sliding_window": 40},
    "olmo2": {},
    "phi3": {"head_dim": 8},
    "qwen2": {
        "head_dim": 8,
        "use_sliding_window": True,
        "sliding_window": 40,
        "max_window_layers": 1,
    },
    "qwen3": {},
    "smollm3": {"head_dim": 8, "no_rope_layer_interval": 2},
}
FAMILIES = tuple(_OWN)


def family_model(
    model_type: str, dtype: torch.dtype = torch.float32, **settings: Any
) -> PreTrainedModel:
    """Return a model with random weights, the same for every call."""
    settings = {**_COMMON, **_OWN.get(model_type, {}), **settings}
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **settings)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    for parameter in model.parameters():
        if parameter.ndim == 1:  # norms and biases begin as ones and zeros: let them matter
            parameter.data += (0.1 * torch.randn(parameter.shape)).to(dtype)
    return model.eval()
