"""An EAGLE head: one decoder layer on top of the target's hidden states.

Row i of a sequence combines what the target computed at token i with the embedding of token i + 1,
and says what follows that one. Rows of tokens that are drafted have no such features; the layer's
own output, before the last norm, takes their place. EAGLE-1 and EAGLE-2 (arXiv 2401.15077 and
2406.16858) put feature and embedding through `fc` and the layer's output straight into the target's
output matrix; EAGLE-3 (arXiv 2503.01840) puts several features through `fc`, norms both and has a
last norm. Plain torch, all sequences of a step at once. Bits may depend on the batch: a
draft cannot change the text.

Knows nothing about rounds, nor about which rows are still right: its callers truncate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.engine.device import CPU, Device
from paceline.engine.draft_vocabulary import DraftVocabulary
from paceline.engine.eagle_checkpoint import HeadWeights
from paceline.engine.head_kv import HeadKV
from paceline.engine.head_linear import HeadLinear
from paceline.engine.head_rotary import RotaryAngles, rotated
from paceline.engine.head_tensors import EMBEDDING, OUTPUT
from paceline.engine.model import Features, Logits
from paceline.engine.token_residual import TABLE
from paceline.heads.eagle_config import HeadConfig

QKV = "self_attn.qkv_proj"
GATE_UP = "mlp.gate_up_proj"
_JOINED = {
    QKV: tuple(f"self_attn.{name}_proj" for name in "qkv"),
    GATE_UP: ("mlp.gate_proj", "mlp.up_proj"),
}
"""Matrices that take the same rows: one call instead of several."""


@dataclass(frozen=True, slots=True)
class HeadRows:
    """One sequence's share of a step: rows behind those in `kv`.

    With features each row follows the one before. Without, each is of a draft: it sees the rows of
    true features and those on its way, and is fed with the output of the last of them.
    """

    kv: HeadKV
    token_ids: Sequence[int]
    """The token behind that of each row, which is embedded."""
    features: Features | None
    """`[len(token_ids), feature_size]`; None for rows of drafts."""
    wants_logits: bool
    """Whether to say what follows the last of the tokens, of drafts what follows each."""
    ways: Sequence[Sequence[int]] | None = None
    """For each row of a draft those of the drafts before it, counted from the first draft's; None
    for one row behind all of them."""

    def draft_ways(self) -> Sequence[Sequence[int]]:
        """The ways of rows of drafts."""
        return [range(self.kv.num_drafts)] if self.ways is None else self.ways


class EagleHead:
    """The head, driven by one thread."""

    def __init__(
        self,
        config: HeadConfig,
        weights: HeadWeights,
        vocab_size: int,
        dtype: torch.dtype = torch.float32,
        is_projected: bool = False,
        device: Device = CPU,
    ) -> None:
        """`vocab_size`: tokens of the target, without rows that pad its matrices.

        `is_projected`: features have gone through the `fc` of this EAGLE-3 head already.
        """
        self._config = config
        self._has_own_fc = config.is_eagle3 and not is_projected
        self.feature_size = config.hidden_size if is_projected else config.feature_size
        """Numbers per token that it is fed with."""
        self._device = device.torch_device
        tensors = dict(weights.tensors)
        # As it was saved: few rows of it are used.
        self._embedding = tensors.pop(EMBEDDING).to(self._device)
        self._token_residual = tensors.pop(TABLE, torch.empty(0)).to(self._device)
        if is_projected:
            del tensors["fc.weight"]
        self._matrices = _matrices(tensors, dtype, self._device)
        self._norms = {
            name: tensor.float().to(self._device)
            for name, tensor in tensors.items()
            if tensor.ndim == 1 and name.endswith(".weight")
        }
        self.num_parameters = weights.num_parameters
        """Its own, without what it borrows from the target."""
        self.vocab_size = vocab_size
        self._vocabulary = DraftVocabulary(weights.target_ids, vocab_size)
        self._angles = RotaryAngles(config, self._device)

    @property
    def bytes_per_token(self) -> int:
        """Room of a token's keys and values, and of its features."""
        config = self._config
        key_value = 2 * config.num_kv_heads * config.head_dim * torch.float32.itemsize
        return key_value + self.feature_size * np.dtype(np.float16).itemsize

    def knows(self, token_ids: Sequence[int]) -> bool:
        """Whether all of these tokens can be embedded."""
        return max(token_ids) < len(self._embedding)

    @torch.inference_mode()
    def forward(self, batch: Sequence[HeadRows]) -> list[Logits | None]:
        """Run one step; for each sequence that wants logits float32 `[n, vocab_size]`.

        One row behind the last of its tokens, or one behind each of its drafts. Tokens that the
        head cannot propose have minus infinity.
        """
        states = torch.cat([self._fed(rows) for rows in batch])
        token_ids = torch.tensor([id for rows in batch for id in rows.token_ids]).to(self._device)
        embedded = F.embedding(token_ids, self._embedding).float()
        residual, inputs = self._combined(states, embedded, token_ids)
        states = residual + self._attention(inputs, batch)
        states = states + self._mlp(self._norm(states, "post_attention_layernorm"))
        ends = np.cumsum([len(rows.token_ids) for rows in batch])
        wanted: list[Tensor] = []
        for rows, end in zip(batch, ends, strict=True):
            first = end - (1 if rows.features is not None else len(rows.token_ids))
            rows.kv.add_outputs(states[first:end])
            if rows.wants_logits:
                wanted.append(states[first:end])
        if not wanted:
            return [None for _ in batch]
        logits = self._logits(torch.cat(wanted))
        parts = iter(np.split(logits, np.cumsum([len(part) for part in wanted])[:-1]))
        return [next(parts) if rows.wants_logits else None for rows in batch]

    def _fed(self, rows: HeadRows) -> Tensor:
        if rows.features is None:
            return rows.kv.outputs_behind(rows.draft_ways())
        features = torch.from_numpy(rows.features.astype(np.float32)).to(self._device)
        return self._linear(features, "fc") if self._has_own_fc else features

    def _combined(
        self, states: Tensor, embedded: Tensor, token_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What the layer adds to, and what its attention takes."""
        if not self._config.is_eagle3:
            fused = self._linear(torch.cat((embedded, states), dim=-1), "fc")
            return fused, fused
        normed = self._norm(states, "hidden_norm")
        both = torch.cat((self._norm(embedded, "input_layernorm"), normed), dim=-1)
        residual = normed if self._config.norm_before_residual else states
        if self._config.has_token_residual:
            residual = residual + F.embedding(token_ids, self._token_residual).float()
        return residual, both

    def _attention(self, states: Tensor, batch: Sequence[HeadRows]) -> Tensor:
        config = self._config
        num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
        heads = self._linear(states, QKV).unflatten(1, (-1, config.head_dim))
        positions = [position for rows in batch for position in _positions(rows)]
        cos, sin = self._angles.at(positions)
        turned = rotated(heads[:, : num_heads + num_kv_heads], cos, sin)
        query, key = turned[:, :num_heads], turned[:, num_heads:]
        value = heads[:, num_heads + num_kv_heads :]
        key_value = torch.stack((key, value)).transpose(1, 2)  # [2, num_kv_heads, N, head_dim]
        attended, first = [], 0
        for rows in batch:
            end = first + len(rows.token_ids)
            mask = _mask(rows)
            mask = None if mask is None else mask.to(self._device)
            keys, values = rows.kv.append(key_value[:, :, first:end], rows.features is None)
            attended.append(_attend(query[first:end].transpose(0, 1), keys, values, mask))
            first = end
        return self._linear(torch.cat(attended), "self_attn.o_proj")

    def _mlp(self, states: Tensor) -> Tensor:
        gate, up = self._linear(states, GATE_UP).chunk(2, dim=-1)
        return self._linear(F.silu(gate) * up, "mlp.down_proj")

    def _logits(self, states: Tensor) -> Logits:
        if self._config.is_eagle3:
            states = self._norm(states, "norm")
        return self._vocabulary.spread(self._linear(states, OUTPUT.removesuffix(".weight")))

    def _linear(self, states: Tensor, name: str) -> Tensor:
        return self._matrices[name](states)

    def _norm(self, states: Tensor, name: str) -> Tensor:
        weight = self._norms[f"{name}.weight"]
        return F.rms_norm(states, weight.shape, weight, self._config.rms_norm_eps)


def _matrices(
    tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device
) -> dict[str, HeadLinear]:
    """The matrices of the layer and around it, by name."""
    names = [name.removesuffix(".weight") for name, tensor in tensors.items() if tensor.ndim == 2]
    joined = {name: parts for name, parts in _JOINED.items() if parts[0] in names}
    single = {
        name: (name,) for name in names if not any(name in parts for parts in joined.values())
    }
    matrices = {}
    for name, parts in {**joined, **single}.items():
        biases = [tensors[f"{part}.bias"] for part in parts if f"{part}.bias" in tensors]
        weight = torch.cat([tensors[f"{part}.weight"] for part in parts])
        bias = torch.cat(biases) if biases else None
        matrices[name] = HeadLinear(weight, bias, dtype, device)
    return matrices


def _positions(rows: HeadRows) -> Sequence[int]:
    kv = rows.kv
    if rows.features is not None:
        return range(kv.end, kv.end + len(rows.token_ids))
    return [kv.end - kv.num_drafts + len(way) for way in rows.draft_ways()]


def _mask(rows: HeadRows) -> Tensor | None:
    """Which rows, those of `kv` and then its own, each of the new rows sees; None for all."""
    num_before, num_new = rows.kv.num_rows, len(rows.token_ids)
    if rows.features is None and rows.ways is not None:
        num_true = num_before - rows.kv.num_drafts
        mask = torch.zeros(num_new, num_before + num_new, dtype=torch.bool)
        mask[:, :num_true] = True
        for row, way in enumerate(rows.ways):
            mask[row, [*(num_true + draft for draft in way), num_before + row]] = True
        return mask
    if num_new == 1:
        return None
    return torch.ones(num_new, num_before + num_new, dtype=torch.bool).tril(num_before)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """`[H, n, D]` over all rows `[num_kv_heads, N, D]` that the mask lets each see."""
    attended = F.scaled_dot_product_attention(
        query[None], key[None], value[None], attn_mask=mask, enable_gqa=True
    )
    return attended[0].transpose(0, 1).flatten(1)
