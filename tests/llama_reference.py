"""A decoder layer as Llama has it (arXiv 2302.13971) written down once more, the slow way.

Rotary embeddings (arXiv 2104.09864), grouped queries (arXiv 2305.13245), gated MLP (arXiv
2002.05202); one row after the other, no cache, explicit sums. Tiny models and heads have the same
numbers of heads.
"""

import math

import torch
from torch import Tensor

NUM_HEADS, NUM_KV_HEADS = 4, 2


def layer_output(
    layer: dict[str, Tensor],  # by the names within a layer
    inputs: list[Tensor],  # what attention takes of each row so far
    residual: Tensor,  # of the last row
    start: int,  # position of the first row
    theta: float,
    epsilon: float,
) -> Tensor:
    """What attention and MLP make of the last row, added to `residual`."""
    query = _project(layer, "q", inputs[-1], NUM_HEADS)
    keys = [_project(layer, "k", row, NUM_KV_HEADS) for row in inputs]
    values = [_project(layer, "v", row, NUM_KV_HEADS) for row in inputs]
    size = query.shape[1]
    attended = []
    for index in range(NUM_HEADS):
        group = index * NUM_KV_HEADS // NUM_HEADS
        turned = _turned(query[index], start + len(inputs) - 1, theta)
        scores = [
            turned @ _turned(key[group], start + row, theta) / math.sqrt(size)
            for row, key in enumerate(keys)
        ]
        shares = torch.softmax(torch.stack(scores), dim=0)
        attended.append(
            sum(
                (share * value[group] for share, value in zip(shares, values, strict=True)),
                torch.zeros(size, dtype=torch.float64),
            )
        )
    mixed = layer["self_attn.o_proj.weight"] @ torch.cat(attended)
    middle = residual + mixed + layer.get("self_attn.o_proj.bias", 0)
    normed = rms_norm(middle, layer["post_attention_layernorm.weight"], epsilon)
    gate = layer["mlp.gate_proj.weight"] @ normed
    up = layer["mlp.up_proj.weight"] @ normed
    return middle + layer["mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)


def rms_norm(row: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm (arXiv 1910.07467)."""
    return weight * row / torch.sqrt((row**2).mean() + epsilon)


def _project(layer: dict[str, Tensor], name: str, row: Tensor, num_heads: int) -> Tensor:
    projected = layer[f"self_attn.{name}_proj.weight"] @ row
    projected = projected + layer.get(f"self_attn.{name}_proj.bias", 0)
    return projected.view(num_heads, -1)


def _turned(row: Tensor, position: int, theta: float) -> Tensor:
    """Rotary embedding: numbers i and i + half are a point that is turned by its own angle."""
    half = len(row) // 2
    turned = torch.empty_like(row)
    for i in range(half):
        angle = position * theta ** (-2 * i / len(row))
        turned[i] = row[i] * math.cos(angle) - row[i + half] * math.sin(angle)
        turned[i + half] = row[i + half] * math.cos(angle) + row[i] * math.sin(angle)
    return turned
