"""Random EAGLE heads for tiny targets, written in the published layouts."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

HIDDEN = 16
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 6
INNER = 24


@dataclass
class HeadFiles:
    """A head in the names and numbers of the papers' own checkpoints; `write` knows the others."""

    vocab_size: int
    draft_vocab_size: int
    target_hidden_size: int = HIDDEN
    num_features: int = 3
    tensors: dict[str, Tensor] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """Changes to the flat config."""
    is_eagle3: bool = True

    @property
    def feature_size(self) -> int:
        return self.num_features * self.target_hidden_size

    @property
    def head_dim(self) -> int:
        """EAGLE-1 knows no other than this."""
        return HEAD_DIM if self.is_eagle3 else HIDDEN // NUM_HEADS

    def config(self) -> dict[str, Any]:
        """As it is published."""
        own = {
            "head_dim": HEAD_DIM,
            "draft_vocab_size": self.draft_vocab_size,
            "target_hidden_size": self.target_hidden_size,
        }
        return {
            "architectures": ["LlamaForCausalLM"],
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_act": "silu",
            "hidden_size": HIDDEN,
            "initializer_range": 0.02,
            "intermediate_size": INNER,
            "max_position_embeddings": 32,
            "model_type": "llama",
            "num_attention_heads": NUM_HEADS,
            "num_key_value_heads": NUM_KV_HEADS,
            "num_hidden_layers": 1,
            "pad_token_id": 0,
            "rms_norm_eps": 1e-05,
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
            "transformers_version": "4.28.1",
            "use_cache": True,
            "vocab_size": self.vocab_size,
            **(own if self.is_eagle3 else {}),
        } | self.settings

    def write(self, directory: Path, layout: str = "published") -> Path:
        """Write the checkpoint; `layout` is `published` or `speculators`."""
        directory.mkdir(parents=True, exist_ok=True)
        config, tensors = self.config(), dict(self.tensors)
        if layout == "speculators":
            config = _nested(config)
            tensors = {
                name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()
            }
        (directory / "config.json").write_text(json.dumps(config))
        save_file({name: t.contiguous() for name, t in tensors.items()}, directory / WEIGHTS)
        return directory


WEIGHTS = "model.safetensors"


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    outer_keys = (
        "draft_vocab_size",
        "target_hidden_size",
        "norm_before_residual",
        "eagle_aux_hidden_state_layer_ids",
    )
    outer = {key: flat.pop(key) for key in outer_keys if key in flat}
    theta = flat.pop("rope_theta", 10000.0)
    flat["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    return {
        "speculators_model_type": "eagle3",
        "speculators_version": "0.4.0",
        "architectures": ["Eagle3Speculator"],
        "auto_map": {"": "config.Eagle3SpeculatorConfig"},
        "has_no_defaults_at_init": False,
        "embed_requires_grad": False,
        "dtype": "float32",
        "transformer_layer_config": flat,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": 3,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": "tiny", "architectures": ["LlamaForCausalLM"]},
        },
        **outer,
    }


class _Random:
    """Weights that are large, so that drafts differ."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def weights(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator) * (3 / shape[-1] ** 0.5)

    def norm(self) -> Tensor:
        return 1 + 0.3 * torch.randn(HIDDEN, generator=self.generator)


def random_eagle1_head(vocab_size: int, seed: int = 0, **settings: Any) -> HeadFiles:
    """A head of EAGLE-1 or EAGLE-2, with its own copy of embeddings but no output matrix."""
    head = HeadFiles(
        vocab_size, vocab_size, num_features=1, settings={"bias": True} | settings, is_eagle3=False
    )
    random = _Random(seed)
    weights = random.weights
    key = NUM_KV_HEADS * head.head_dim
    head.tensors = {
        "embed_tokens.weight": weights(vocab_size, HIDDEN),
        "fc.weight": weights(HIDDEN, 2 * HIDDEN) / 3,
        "layers.0.self_attn.q_proj.weight": weights(HIDDEN, HIDDEN),
        "layers.0.self_attn.k_proj.weight": weights(key, HIDDEN),
        "layers.0.self_attn.v_proj.weight": weights(key, HIDDEN),
        "layers.0.self_attn.o_proj.weight": weights(HIDDEN, HIDDEN) * 4,
        "layers.0.mlp.gate_proj.weight": weights(INNER, HIDDEN),
        "layers.0.mlp.up_proj.weight": weights(INNER, HIDDEN),
        "layers.0.mlp.down_proj.weight": weights(HIDDEN, INNER),
        "layers.0.post_attention_layernorm.weight": random.norm(),
    }
    if head.settings["bias"]:
        head.tensors["fc.bias"] = torch.randn(HIDDEN, generator=random.generator)
    if head.settings.get("qkv_bias"):
        for name, size in {"q": HIDDEN, "k": key, "v": key}.items():
            bias = torch.randn(size, generator=random.generator)
            head.tensors[f"layers.0.self_attn.{name}_proj.bias"] = bias
    return head


def random_head(
    vocab_size: int, draft_vocab_size: int | None = None, seed: int = 0, **settings: Any
) -> HeadFiles:
    """A head with random weights and its own embeddings; large ones, so that drafts differ."""
    draft_vocab_size = draft_vocab_size or vocab_size
    head = HeadFiles(vocab_size, draft_vocab_size, settings=settings)
    random = _Random(seed)
    weights, norm, generator = random.weights, random.norm, random.generator
    query, key = NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM
    head.tensors = {
        "embed_tokens.weight": weights(vocab_size, HIDDEN) * 4,
        "fc.weight": weights(HIDDEN, head.num_features * head.target_hidden_size),
        "midlayer.input_layernorm.weight": norm(),
        "midlayer.hidden_norm.weight": norm(),
        "midlayer.post_attention_layernorm.weight": norm(),
        "midlayer.self_attn.q_proj.weight": weights(query, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": weights(key, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": weights(key, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": weights(HIDDEN, query),
        "midlayer.mlp.gate_proj.weight": weights(INNER, HIDDEN),
        "midlayer.mlp.up_proj.weight": weights(INNER, HIDDEN),
        "midlayer.mlp.down_proj.weight": weights(HIDDEN, INNER),
        "norm.weight": norm(),
        "lm_head.weight": weights(draft_vocab_size, HIDDEN),
    }
    if head.settings.get("attention_bias"):
        for name, size in {"q": query, "k": key, "v": key, "o": HIDDEN}.items():
            bias = torch.randn(size, generator=generator)
            head.tensors[f"midlayer.self_attn.{name}_proj.bias"] = bias
    if draft_vocab_size < vocab_size:
        chosen = torch.randperm(vocab_size, generator=generator)[:draft_vocab_size].sort().values
        head.tensors["d2t"] = chosen - torch.arange(draft_vocab_size)
        mask = torch.zeros(vocab_size, dtype=torch.bool)
        mask[chosen] = True
        head.tensors["t2d"] = mask
    return head
