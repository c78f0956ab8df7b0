"""Random Medusa heads for tiny targets, written in both published layouts, and what they say.

The forward pass is that of arXiv 2401.10774, section 2.1.1, one head and one row at a time.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

HIDDEN = 16
NUM_HEADS = 3
LAYOUTS = ["authors", "vllm"]


@dataclass
class MedusaFiles:
    """Heads in the authors' names; `write` knows vLLM's."""

    vocab_size: int
    num_layers: int = 1
    tensors: dict[str, Tensor] = field(default_factory=dict)
    token_map: Tensor | None = None
    """Only vLLM's layout can have it."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Changes to the config."""

    def config(self, layout: str) -> dict[str, Any]:
        if layout == "authors":
            return {
                "base_model_name_or_path": "tiny",
                "medusa_num_heads": NUM_HEADS,
                "medusa_num_layers": self.num_layers,
                "transformers_version": "4.31.0",
            } | self.settings
        return {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": HIDDEN,
            "vocab_size": self.vocab_size,
            "num_heads": NUM_HEADS,
            "num_hidden_layers": self.num_layers,
            "max_paths": 64,
            "topk": 10,
            "truncated_vocab_size": None if self.token_map is None else len(self.token_map),
            "medusa_fc_bias": True,
            "transformers_version": "4.41.0",
        } | self.settings

    def named(self, layout: str) -> dict[str, Tensor]:
        """The tensors by the names that they have in a layout."""
        if layout == "authors":
            return dict(self.tensors)
        named = {} if self.token_map is None else {"token_map": self.token_map}
        for name, tensor in self.tensors.items():
            head, place, *rest = name.split(".")
            is_block = rest[0] == "linear"
            if is_block:
                named[f"blocks.{head}.layers.{place}.{rest[1]}"] = tensor
            else:
                named[f"lm_heads.{head}.weight"] = tensor
        return named

    def write(self, directory: Path, layout: str = "authors", file: str = "") -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text(json.dumps(self.config(layout)))
        names = {"authors": "medusa_lm_head.safetensors", "vllm": "model.safetensors"}
        tensors = {name: tensor.contiguous() for name, tensor in self.named(layout).items()}
        save_file(tensors, directory / (file or names[layout]))
        return directory


def random_medusa(
    vocab_size: int, num_layers: int = 1, draft_vocab_size: int | None = None, seed: int = 0
) -> MedusaFiles:
    """Heads with random weights; large ones, so that drafts differ."""
    generator = torch.Generator().manual_seed(seed)
    files = MedusaFiles(vocab_size, num_layers)
    if draft_vocab_size is not None:
        chosen = torch.randperm(vocab_size, generator=generator)[:draft_vocab_size]
        files.token_map = chosen
    for head in range(NUM_HEADS):
        for block in range(num_layers):
            weight = torch.randn(HIDDEN, HIDDEN, generator=generator) / 2
            files.tensors[f"{head}.{block}.linear.weight"] = weight
            files.tensors[f"{head}.{block}.linear.bias"] = torch.randn(HIDDEN, generator=generator)
        output = torch.randn(draft_vocab_size or vocab_size, HIDDEN, generator=generator)
        files.tensors[f"{head}.{num_layers}.weight"] = output
    return files


def without_outputs(files: MedusaFiles) -> MedusaFiles:
    """The same heads with the target's output matrix in place of their own."""
    for head in range(NUM_HEADS):
        del files.tensors[f"{head}.{files.num_layers}.weight"]
    return files


def medusa_reference(
    files: MedusaFiles, row: Tensor, head: int, target_output: Tensor | None = None
) -> Tensor:
    """The logits [vocab_size] of head number `head` for a hidden state of the target."""
    state = row.double()
    for block in range(files.num_layers):
        turned = files.tensors[f"{head}.{block}.linear.weight"].double() @ state
        turned = turned + files.tensors[f"{head}.{block}.linear.bias"].double()
        state = state + turned * torch.sigmoid(turned)
    output = files.tensors.get(f"{head}.{files.num_layers}.weight")
    token_ids = range(files.vocab_size) if files.token_map is None else files.token_map.tolist()
    logits = torch.full((files.vocab_size,), -torch.inf, dtype=torch.float64)
    for index, token_id in enumerate(token_ids):
        if output is not None:
            logits[token_id] = output[index].double() @ state
        else:
            assert target_output is not None
            logits[token_id] = target_output[token_id].double() @ state
    return logits
