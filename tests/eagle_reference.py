"""EAGLE-3's forward pass (arXiv 2503.01840, section 3.1) written down once more, the slow way.

Takes published tensors by their names, one row after the other, no cache, explicit sums: every
row's keys are computed anew from all rows before it.
"""

import math

import torch
from eagle_heads import HEAD_DIM, NUM_HEADS, NUM_KV_HEADS, HeadFiles
from torch import Tensor


def reference_logits(
    head: HeadFiles,
    features: Tensor,  # [n, feature_size], of tokens start .. start + n - 1
    token_ids: list[int],  # the token behind each of those, and drafted ones behind them
    start: int,
) -> Tensor:
    """The logits [vocab_size] of what follows the last of `token_ids`."""
    weights = {name: tensor.double() for name, tensor in head.tensors.items()}
    states: list[Tensor] = [weights["fc.weight"] @ row for row in features.double()]
    output = _layer(head, weights, states, token_ids[: len(states)], start)
    for number in range(len(states), len(token_ids)):
        states.append(output)  # of the row before, in place of features
        output = _layer(head, weights, states, token_ids[: number + 1], start)
    draft_logits = weights["lm_head.weight"] @ _norm(output, weights["norm.weight"])
    logits = torch.full((head.vocab_size,), -math.inf, dtype=torch.float64)
    for draft_id, logit in enumerate(draft_logits):
        offset = int(weights["d2t"][draft_id]) if "d2t" in weights else 0
        logits[draft_id + offset] = logit
    return logits


def _layer(
    head: HeadFiles,
    weights: dict[str, Tensor],
    states: list[Tensor],
    token_ids: list[int],
    start: int,
) -> Tensor:
    """What the decoder layer makes of the last row."""
    inputs = [
        torch.cat(
            (
                _norm(
                    weights["embed_tokens.weight"][token_id],
                    weights["midlayer.input_layernorm.weight"],
                ),
                _norm(state, weights["midlayer.hidden_norm.weight"]),
            )
        )
        for token_id, state in zip(token_ids, states, strict=True)
    ]
    query = _project(weights, "q", inputs[-1], NUM_HEADS)
    keys = [_project(weights, "k", row, NUM_KV_HEADS) for row in inputs]
    values = [_project(weights, "v", row, NUM_KV_HEADS) for row in inputs]
    theta = float(head.config().get("rope_theta", 10000.0))
    attended = []
    for index in range(NUM_HEADS):
        group = index * NUM_KV_HEADS // NUM_HEADS
        turned = _turned(query[index], start + len(inputs) - 1, theta)
        scores = [
            turned @ _turned(key[group], start + row, theta) / math.sqrt(HEAD_DIM)
            for row, key in enumerate(keys)
        ]
        shares = torch.softmax(torch.stack(scores), dim=0)
        attended.append(
            sum(
                (share * value[group] for share, value in zip(shares, values, strict=True)),
                torch.zeros(HEAD_DIM, dtype=torch.float64),
            )
        )
    residual = states[-1]
    if head.settings.get("norm_before_residual"):
        residual = _norm(residual, weights["midlayer.hidden_norm.weight"])
    mixed = weights["midlayer.self_attn.o_proj.weight"] @ torch.cat(attended)
    middle = residual + mixed + weights.get("midlayer.self_attn.o_proj.bias", 0)
    normed = _norm(middle, weights["midlayer.post_attention_layernorm.weight"])
    gate = weights["midlayer.mlp.gate_proj.weight"] @ normed
    up = weights["midlayer.mlp.up_proj.weight"] @ normed
    return middle + weights["midlayer.mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)


def _project(weights: dict[str, Tensor], name: str, row: Tensor, num_heads: int) -> Tensor:
    projected = weights[f"midlayer.self_attn.{name}_proj.weight"] @ row
    projected = projected + weights.get(f"midlayer.self_attn.{name}_proj.bias", 0)
    return projected.view(num_heads, HEAD_DIM)


def _norm(row: Tensor, weight: Tensor) -> Tensor:
    return weight * row / torch.sqrt((row**2).mean() + 1e-05)


def _turned(row: Tensor, position: int, theta: float) -> Tensor:
    """Rotary embedding: numbers i and i + half are a point that is turned by its own angle."""
    half = HEAD_DIM // 2
    turned = torch.empty_like(row)
    for i in range(half):
        angle = position * theta ** (-2 * i / HEAD_DIM)
        turned[i] = row[i] * math.cos(angle) - row[i + half] * math.sin(angle)
        turned[i + half] = row[i + half] * math.cos(angle) + row[i] * math.sin(angle)
    return turned
