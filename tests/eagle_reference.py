"""The forward passes of EAGLE heads written down once more, the slow way.

EAGLE-1 and EAGLE-2: arXiv 2401.15077, section 4.1, and 2406.16858, which drafts trees with the same
heads. EAGLE-3: arXiv 2503.01840, section 3.1. Takes published tensors by their names, one row after
the other, no cache, explicit sums: every row's keys are computed anew from all rows before it.
"""

import math

import torch
from eagle_heads import HeadFiles
from llama_reference import layer_output, rms_norm
from torch import Tensor

EPSILON = 1e-05


def reference_logits(
    head: HeadFiles,
    features: Tensor,  # [n, feature_size], of tokens start .. start + n - 1
    token_ids: list[int],  # the token behind each of those, and drafted ones behind them
    start: int,
    target_output: Tensor | None = None,  # the target's lm_head, for heads that have none
) -> Tensor:
    """The logits [vocab_size] of what follows the last of `token_ids`."""
    weights = {name: tensor.double() for name, tensor in head.tensors.items()}
    step = _eagle3_step if head.is_eagle3 else _eagle1_step
    states: list[Tensor] = [*features.double()]
    if head.is_eagle3:
        states = [weights["fc.weight"] @ row for row in states]
    output = step(head, weights, states, token_ids[: len(states)], start)
    for number in range(len(states), len(token_ids)):
        states.append(output)  # of the row before, in place of features
        output = step(head, weights, states, token_ids[: number + 1], start)
    if not head.is_eagle3:
        assert target_output is not None
        return target_output.double() @ output
    draft_logits = weights["lm_head.weight"] @ _norm(output, weights["norm.weight"])
    logits = torch.full((head.vocab_size,), -math.inf, dtype=torch.float64)
    for draft_id, logit in enumerate(draft_logits):
        offset = int(weights["d2t"][draft_id]) if "d2t" in weights else 0
        logits[draft_id + offset] = logit
    return logits


def _eagle1_step(
    head: HeadFiles,
    weights: dict[str, Tensor],
    states: list[Tensor],
    token_ids: list[int],
    start: int,
) -> Tensor:
    """What the head makes of the last row: fc over both, and a layer without its first norm."""
    inputs = [
        weights["fc.weight"] @ torch.cat((weights["embed_tokens.weight"][token_id], state))
        + weights.get("fc.bias", 0)
        for token_id, state in zip(token_ids, states, strict=True)
    ]
    return _layer(head, weights, "layers.0.", inputs, inputs[-1], start)


def _eagle3_step(
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
    residual = states[-1]
    if head.settings.get("norm_before_residual"):
        residual = _norm(residual, weights["midlayer.hidden_norm.weight"])
    return _layer(head, weights, "midlayer.", inputs, residual, start)


def _layer(
    head: HeadFiles,
    weights: dict[str, Tensor],
    prefix: str,
    inputs: list[Tensor],
    residual: Tensor,
    start: int,
) -> Tensor:
    """What the layer makes of the last row of `inputs`, added to `residual`."""
    layer = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    theta = float(head.config().get("rope_theta", 10000.0))
    return layer_output(layer, inputs, residual, start, theta, EPSILON)


def _norm(row: Tensor, weight: Tensor) -> Tensor:
    return rms_norm(row, weight, EPSILON)
