"""Writes a trained EAGLE-3 head as a checkpoint, in half precision, without the embeddings.

As published: in the layout of vLLM's `speculators`, which this project and vLLM load. With a token
residual, which no other engine would follow: in a flat layout under a name of its own, so that none
runs it wrongly; small enough to be shipped, since the output matrix is the target's and the table
has eight bits a number.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draft_service.training.saved_head import WriteMore, half, save_head
from draft_service.training.token_residual import FEATURE_SCALE, TABLE_PROJECTION
from paceline.engine.token_residual import ROWS, SCALES, TOKEN_IDS
from paceline.heads.eagle_config import HeadConfig

LAYER_PREFIX = "layers.0."
DRAFTS_PER_ROUND = 3
"""What the checkpoint asks of engines that have no other way to know."""
_SPECULATORS_VERSION = "0.5.0"
_OUTSIDE_LAYER = ("fc.", "norm.", "token_residual.")
_FOLDED = (FEATURE_SCALE, TABLE_PROJECTION)
_INT8_MOST = 127


@dataclass(frozen=True, slots=True)
class Verifier:
    """The target, as vLLM is told of it."""

    name: str
    architectures: tuple[str, ...]


def save_published(
    directory: Path,
    config: HeadConfig,
    weights: Mapping[str, Tensor],
    output_matrix: Tensor,
    target_ids: Tensor,
    verifier: Verifier,
    write_more: WriteMore,
) -> Path:
    """`directory` with the head, there whole or not at all.

    `weights` by the names of `EagleTrainee`. `output_matrix` `[draft_vocab_size, hidden_size]`:
    the rows of the draft vocabulary, which are the target's tokens `target_ids`. `write_more` adds
    what else belongs there.
    """
    tensors = _named(weights, LAYER_PREFIX) | {"lm_head.weight": half(output_matrix)}
    tensors |= _maps(config, target_ids)
    return save_head(directory, _speculators(config, verifier), tensors, write_more)


def save_with_token_residual(
    directory: Path,
    config: HeadConfig,
    weights: Mapping[str, Tensor],
    table_ids: Tensor,
    folded_table: Tensor,
    target_ids: Tensor,
    write_more: WriteMore,
) -> Path:
    """As `save_published`, of a head with a `TokenResidual`.

    `folded_table` `[num_table_tokens, hidden_size]`: what the residual of the tokens `table_ids`
    begins with.
    """
    kept = {name: weight for name, weight in weights.items() if name not in _FOLDED}
    kept["fc.weight"] = weights["fc.weight"] * weights[FEATURE_SCALE]
    scales = folded_table.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / _INT8_MOST
    tensors = _named(kept, "midlayer.") | {
        ROWS: (folded_table / scales).round().to(torch.int8).cpu(),
        SCALES: scales[:, 0].float().cpu(),
        TOKEN_IDS: table_ids.cpu(),
    }
    return save_head(directory, _own(config), tensors | _maps(config, target_ids), write_more)


def _named(weights: Mapping[str, Tensor], layer_prefix: str) -> dict[str, Tensor]:
    """By the names of a checkpoint."""
    return {
        name if name.startswith(_OUTSIDE_LAYER) else layer_prefix + name: half(weight)
        for name, weight in weights.items()
    }


def _maps(config: HeadConfig, target_ids: Tensor) -> dict[str, Tensor]:
    """`d2t` and `t2d`, where the draft vocabulary is smaller than the target's."""
    if config.draft_vocab_size == config.vocab_size:
        return {}
    target_ids = target_ids.cpu()
    mask = torch.zeros(config.vocab_size, dtype=torch.bool)
    mask[target_ids] = True
    return {"d2t": target_ids - torch.arange(config.draft_vocab_size), "t2d": mask}


def _own(config: HeadConfig) -> dict[str, Any]:
    return {
        "architectures": ["PacelineEagle3"],
        "token_residual": True,
        "dtype": "float16",
        **_head_settings(config),
        **_layer_settings(config),
    }


def _head_settings(config: HeadConfig) -> dict[str, Any]:
    return {
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": config.norm_before_residual,
        "eagle_aux_hidden_state_layer_ids": config.layer_ids,
    }


def _layer_settings(config: HeadConfig) -> dict[str, Any]:
    return {
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
    }


def _speculators(config: HeadConfig, verifier: Verifier) -> dict[str, Any]:
    return {
        "speculators_model_type": "eagle3",
        "speculators_version": _SPECULATORS_VERSION,
        "architectures": ["Eagle3Speculator"],
        "dtype": "float16",
        **_head_settings(config),
        "embed_requires_grad": False,
        "transformer_layer_config": _layer_settings(config),
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
