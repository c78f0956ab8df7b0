"""Trains a small draft model: a student with some of the target's layers, taught the target's law.

The student begins as the target with its middle layers left out and keeps the target's embeddings
and output matrix, so it learns what all tokens mean to the output, not only frequent ones. It
drafts from its own output by nature, so there is nothing to unroll.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from draft_service.training.batches import Batch, Feed
from draft_service.training.distillation import distil
from draft_service.training.material import Material
from draft_service.training.saved_head import check_numbers, check_saved
from draft_service.training.unrolling import NextTokens
from paceline.engine.cache_directory import made_once
from paceline.engine.checkpoints import first_layers, quiet_transformers

_DESCRIPTION = (
    "A draft model with {num_layers} layers of {target}: for "
    "`paceline serve --drafter draft-model --draft-model <this directory>`, and as any other small "
    "model elsewhere."
)


class StudentTrainee:
    """The student, as `distil` teaches it."""

    max_drafts: int | None = None

    def __init__(self, student: PreTrainedModel) -> None:
        self.feed = Feed(slice(0, 0))
        self._body: Any = student.base_model
        self.weights: dict[str, Tensor] = {
            name: weight
            for name, weight in self._body.named_parameters()
            if not name.startswith("embed_tokens.")
        }

    def predictions(self, batch: Batch, num_steps: int, next_tokens: NextTokens) -> list[Tensor]:
        """As `Trainee` says, for true tokens; what others would bring is never accepted."""
        said = torch.cat(
            [
                self._read(torch.cat((batch.first_ids[index, None], batch.token_ids[first:end])))
                for index, (first, end) in enumerate(batch.bounds)
            ]
        )
        return [said.roll(-step, dims=0) for step in range(num_steps)]

    def _read(self, token_ids: Tensor) -> Tensor:
        """The last states of a span's tokens, without the one in front of its rows."""
        states: Tensor = self._body(token_ids[None], use_cache=False).last_hidden_state
        return states[0, 1:]


def train_draft_model(material: Material) -> Path:
    """Train and save the student; returns its directory."""
    loaded, num_layers = material.loaded, material.settings.num_layers
    student = student_of(loaded.module, num_layers)
    write_card = distil(
        material,
        StudentTrainee(student),
        1,
        f"Draft model for {loaded.name}",
        _DESCRIPTION.format(num_layers=num_layers, target=loaded.name),
    )

    student.half()
    check_numbers(student.state_dict())
    if material.head_directory.is_dir():
        check_saved(material.head_directory, None, dict(student.named_parameters()))

    def write(directory: Path) -> None:
        with quiet_transformers():
            student.save_pretrained(directory)
        for file in loaded.tokenizer_files:
            (directory / file.name).write_bytes(file.content)
        write_card(directory)

    return made_once(material.head_directory, write)


def student_of(target: PreTrainedModel, num_layers: int) -> PreTrainedModel:
    """The target's first and last layers, half of each; raises `InvalidConfig`."""
    config = first_layers(target.config, num_layers)
    student: Any = AutoModelForCausalLM.from_config(config).to(target.device).requires_grad_(False)
    decoder: Any = target.base_model
    layers = list(decoder.layers)
    num_first = num_layers - num_layers // 2
    kept = layers[:num_first] + layers[len(layers) - num_layers // 2 :]
    with torch.no_grad():
        for own, layer in zip(student.base_model.layers, kept, strict=True):
            own.load_state_dict(layer.state_dict())
        student.base_model.norm.load_state_dict(decoder.norm.state_dict())
        for name in ("get_input_embeddings", "get_output_embeddings"):
            getattr(student, name)().weight.copy_(getattr(target, name)().weight)
    trained: PreTrainedModel = student.eval()
    return trained
