"""Random targets and trained exits for them, and what the paper's early exit says.

The forward pass is that of LayerSkip (arXiv 2404.16710, section 4.3): the first layers, then the
last norm and the output matrix. A trained exit puts its own layer and norm between.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from llama_reference import layer_output, rms_norm
from safetensors.torch import load_file, save_file
from tiny_models import save_checkpoint, tiny_config
from torch import Tensor
from transformers import AutoModelForCausalLM

from paceline.engine.table_model import VOCAB_SIZE

HIDDEN = 16
EPSILON, THETA = 1e-06, 10000.0
WEIGHTS = "model.safetensors"
DRAFT_VOCAB_SIZE = 100


def save_target(directory: Path, is_tied: bool = False) -> Path:
    """A Llama of three layers whose weights are large, so that each of them matters."""
    config = tiny_config()
    config.tie_word_embeddings = is_tied
    save_checkpoint(directory, config)
    model = AutoModelForCausalLM.from_pretrained(directory)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                scale = (
                    1.0 if name == "model.embed_tokens.weight" else 2 / parameter.shape[1] ** 0.5
                )
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
            else:
                parameter.copy_(1 + 0.3 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(directory)
    return directory


@dataclass
class ExitFiles:
    """A trained exit."""

    exit_layer: int
    tensors: dict[str, Tensor] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """Changes to the config."""

    def write(self, directory: Path) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        config = {
            "model_type": "early_exit",
            "exit_layer": self.exit_layer,
            "target": "tiny",
            "hidden_size": HIDDEN,
            "vocab_size": VOCAB_SIZE,
        } | self.settings
        (directory / "config.json").write_text(json.dumps(config))
        tensors = {name: tensor.contiguous() for name, tensor in self.tensors.items()}
        save_file(tensors, directory / WEIGHTS)
        return directory


def random_exit(
    exit_layer: int, draft_vocab_size: int | None = None, has_output: bool = False
) -> ExitFiles:
    """An exit for `save_target`'s models."""
    generator = torch.Generator().manual_seed(7)

    def weights(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * (2 / shape[-1] ** 0.5)

    files = ExitFiles(exit_layer)
    files.tensors = {
        "layer.self_attn.q_proj.weight": weights(HIDDEN, HIDDEN),
        "layer.self_attn.k_proj.weight": weights(HIDDEN // 2, HIDDEN),
        "layer.self_attn.v_proj.weight": weights(HIDDEN // 2, HIDDEN),
        "layer.self_attn.o_proj.weight": weights(HIDDEN, HIDDEN),
        "layer.mlp.gate_proj.weight": weights(2 * HIDDEN, HIDDEN),
        "layer.mlp.up_proj.weight": weights(2 * HIDDEN, HIDDEN),
        "layer.mlp.down_proj.weight": weights(HIDDEN, 2 * HIDDEN),
    }
    for name in ("layer.input_layernorm", "layer.post_attention_layernorm", "norm"):
        files.tensors[f"{name}.weight"] = 1 + 0.3 * torch.randn(HIDDEN, generator=generator)
    if has_output:
        files.tensors["lm_head.weight"] = weights(draft_vocab_size or VOCAB_SIZE, HIDDEN)
    if draft_vocab_size is not None:
        files.settings["draft_vocab_size"] = draft_vocab_size
        chosen = torch.randperm(VOCAB_SIZE, generator=generator)[:draft_vocab_size].sort().values
        files.tensors["d2t"] = chosen - torch.arange(draft_vocab_size)
        mask = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
        mask[chosen] = True
        files.tensors["t2d"] = mask
    return files


def exit_reference(
    target: Path, token_ids: list[int], exit_layer: int, files: ExitFiles | None = None
) -> Tensor:
    """The logits [vocab_size] of what follows the last token."""
    weights = {name: tensor.double() for name, tensor in load_file(target / WEIGHTS).items()}
    own = {} if files is None else {name: t.double() for name, t in files.tensors.items()}
    states = [weights["model.embed_tokens.weight"][token_id] for token_id in token_ids]
    prefixes = [f"model.layers.{layer}." for layer in range(exit_layer)]
    for prefix in prefixes:
        states = _through(_named(weights, prefix), states)
    if own:
        states = _through(_named(own, "layer."), states)
    normed = rms_norm(states[-1], own.get("norm.weight", weights["model.norm.weight"]), EPSILON)
    output = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    token_map = torch.arange(len(output))
    if "d2t" in own:
        token_map = torch.arange(len(own["d2t"])) + own["d2t"].long()
    output = own.get("lm_head.weight", output[token_map])
    logits = torch.full((VOCAB_SIZE,), -torch.inf, dtype=torch.float64)
    for index, token_id in enumerate(token_map.tolist()):
        logits[token_id] = output[index] @ normed
    return logits


def _named(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in weights.items() if name.startswith(prefix)}


def _through(layer: dict[str, Tensor], states: list[Tensor]) -> list[Tensor]:
    inputs = [rms_norm(state, layer["input_layernorm.weight"], EPSILON) for state in states]
    return [
        layer_output(layer, inputs[: row + 1], states[row], 0, THETA, EPSILON)
        for row in range(len(states))
    ]
