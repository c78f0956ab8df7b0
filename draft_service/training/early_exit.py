"""Trains an exit on top of a target's first layers (self-speculation) and saves it.

The exit is one more decoder layer of the target's own kind, beginning as its last, and a last norm.
It attends as the layer whose place it takes, since it is served there.
A drafted token runs through the same first layers as any other, so there is nothing to unroll: what
is drafted behind right drafts is what is said behind true tokens.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draft_service.training.batches import Batch, Feed
from draft_service.training.distillation import distil
from draft_service.training.material import Material
from draft_service.training.saved_head import half, save_head
from draft_service.training.settings import TrainingSettings
from draft_service.training.unrolling import NextTokens
from paceline.errors import InvalidConfig

_EXIT_SHARE = 4
"""A quarter of the layers run before an exit, as the drafter `early-exit` has it by itself."""
_DESCRIPTION = (
    "A trained exit behind the first {exit_layer} layers of {target}: for "
    "`paceline serve --drafter early-exit --head <this directory>`."
)


class ExitTrainee:
    """The exit, as `distil` teaches it."""

    max_drafts: int | None = None

    def __init__(self, decoder: Any, exit_layer: int, columns: slice) -> None:
        """`decoder`: the target's layers with their norm and rotary embedding.

        `columns`: where in the features the input of that layer is.
        """
        # A row is about what follows the token behind its own, so that one is fed; the token in
        # front of a span's first row is what its attention begins with.
        self.feed = Feed(columns, lag=1)
        self._layer: Any = deepcopy(decoder.layers[exit_layer])
        self._layer.load_state_dict(decoder.layers[-1].state_dict())
        self._norm: Any = deepcopy(decoder.norm)
        self._rotary: Any = decoder.rotary_emb
        config = decoder.config
        kinds = getattr(config, "layer_types", None)
        kind = kinds[exit_layer] if kinds else None
        self._rotary_kind = [kind] if kind in (config.rope_parameters or {}) else []
        is_windowed = kinds is None or kind == "sliding_attention"
        self._window: int | None = getattr(config, "sliding_window", None) if is_windowed else None
        self.weights: dict[str, Tensor] = {
            **{f"layer.{name}": weight for name, weight in self._layer.named_parameters()},
            "norm.weight": self._norm.weight,
        }

    def predictions(self, batch: Batch, num_steps: int, next_tokens: NextTokens) -> list[Tensor]:
        """As `Trainee` says, for true tokens; what others would bring is never accepted."""
        said = self._norm(
            torch.cat(
                [
                    self._exit(torch.cat((batch.before[index], batch.features[first:end])))
                    for index, (first, end) in enumerate(batch.bounds)
                ]
            )
        )
        return [said.roll(-step, dims=0) for step in range(num_steps)]

    def _exit(self, states: Tensor) -> Tensor:
        """The layer's output for a span's rows, without the one in front of them."""
        positions = torch.arange(len(states), device=states.device)
        mask = None  # causal
        if self._window is not None and len(states) > self._window:
            distances = positions[:, None] - positions
            mask = ((distances >= 0) & (distances < self._window))[None, None]
        states = states[None]
        embedded = self._rotary(states, positions[None], *self._rotary_kind)
        output = self._layer(states, position_embeddings=embedded, attention_mask=mask)
        rows: Tensor = output[0, 1:]
        return rows


def exit_layer_of(settings: TrainingSettings, num_layers: int) -> int:
    """How many of the target's layers run before the exit; raises `InvalidConfig`."""
    exit_layer = settings.exit_layer or max(1, num_layers // _EXIT_SHARE)
    if exit_layer >= num_layers:
        raise InvalidConfig(
            f"exit_layer is {exit_layer}; expected 1 to {num_layers - 1}, less than the model's "
            "layers"
        )
    return exit_layer


def train_early_exit(material: Material) -> Path:
    """Train and save the exit; returns its directory."""
    decoder: Any = material.loaded.module.base_model
    exit_layer = exit_layer_of(material.settings, len(decoder.layers))
    target, target_ids = material.loaded.name, material.target_ids
    hidden_size, vocab_size = material.features.hidden_size, len(material.output_matrix)
    start = material.layer_ids.index(exit_layer) * hidden_size
    trainee = ExitTrainee(decoder, exit_layer, slice(start, start + hidden_size))
    title = f"Exit behind layer {exit_layer} of {target}"
    description = _DESCRIPTION.format(exit_layer=exit_layer, target=target)
    write_card = distil(material, trainee, 1, title, description)
    config = {
        "model_type": "early_exit",
        "exit_layer": exit_layer,
        "target": target,
        "hidden_size": hidden_size,
        "vocab_size": vocab_size,
        "draft_vocab_size": len(target_ids),
    }
    tensors = {name: half(weight) for name, weight in trainee.weights.items()}
    if len(target_ids) < vocab_size:
        tensors["d2t"] = (target_ids - torch.arange(len(target_ids)).to(target_ids.device)).cpu()
    return save_head(material.head_directory, config, tensors, write_card)
