"""Writes a trained EAGLE-3 head as a checkpoint in the layout of vLLM's `speculators`.

Both this project and vLLM load it. The embeddings are the target's and are left out; everything
else goes in, in half precision.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.engine.cache_directory import made_once
from paceline.engine.eagle_config import HeadConfig
from paceline.engine.head_config_file import CONFIG_FILE
from paceline.engine.safetensors_directory import WEIGHTS_FILE

LAYER_PREFIX = "layers.0."
DRAFTS_PER_ROUND = 3
"""What the checkpoint asks of engines that have no other way to know."""
_SPECULATORS_VERSION = "0.5.0"
_OUTSIDE_LAYER = frozenset({"fc.weight", "norm.weight"})


@dataclass(frozen=True, slots=True)
class Verifier:
    """The target, as vLLM is told of it."""

    name: str
    architectures: tuple[str, ...]


def save_eagle_head(
    directory: Path,
    config: HeadConfig,
    weights: Mapping[str, Tensor],
    output_matrix: Tensor,
    target_ids: Tensor,
    verifier: Verifier,
) -> Path:
    """`directory` with the head, there whole or not at all.

    `weights` by the names of `EagleTrainee`. `output_matrix` `[draft_vocab_size, hidden_size]`:
    the rows of the draft vocabulary, which are the target's tokens `target_ids`.
    """
    tensors = {
        name if name in _OUTSIDE_LAYER else LAYER_PREFIX + name: weight
        for name, weight in weights.items()
    }
    tensors["lm_head.weight"] = output_matrix
    saved = {name: tensor.detach().half().cpu().contiguous() for name, tensor in tensors.items()}
    if config.draft_vocab_size < config.vocab_size:
        target_ids = target_ids.cpu()
        saved["d2t"] = target_ids - torch.arange(config.draft_vocab_size)
        saved["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool)
        saved["t2d"][target_ids] = True

    def write(unfinished: Path) -> None:
        text = json.dumps(_config(config, verifier), indent=2)
        (unfinished / CONFIG_FILE).write_text(text + "\n")
        save_file(saved, unfinished / WEIGHTS_FILE)

    return made_once(directory, write)


def _config(config: HeadConfig, verifier: Verifier) -> dict[str, Any]:
    return {
        "speculators_model_type": "eagle3",
        "speculators_version": _SPECULATORS_VERSION,
        "architectures": ["Eagle3Speculator"],
        "dtype": "float16",
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": config.norm_before_residual,
        "eagle_aux_hidden_state_layer_ids": list(config.layer_ids or ()),
        "embed_requires_grad": False,
        "transformer_layer_config": {
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": 1,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "rms_norm_eps": config.rms_norm_eps,
            "attention_bias": bool(config.attention_biases),
            "vocab_size": config.vocab_size,
            "rope_parameters": config.rope,
            "tie_word_embeddings": False,
        },
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": DRAFTS_PER_ROUND,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {
                "name_or_path": verifier.name,
                "architectures": list(verifier.architectures),
            },
        },
    }
