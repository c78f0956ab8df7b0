"""What every drafter is made of: the target, its text with features, and who learns from what."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from draft_service.training.batches import shared_beginning
from draft_service.training.checkpoint import HEAD_FOLDER
from draft_service.training.draft_vocabulary import most_frequent
from draft_service.training.features import FeatureFiles
from draft_service.training.logits_scaling import logits_scaling
from draft_service.training.model_card import CardFacts
from draft_service.training.progress import Progress
from draft_service.training.settings import TrainingSettings
from draft_service.training.text import TrainingText
from paceline.engine.loading import LoadedModel
from paceline.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class Material:
    """Everything that a training is given."""

    settings: TrainingSettings
    loaded: LoadedModel
    text: TrainingText
    features: FeatureFiles
    layer_ids: tuple[int, ...]
    """Of the features, in front of the last state."""
    progress: Progress
    held_out: list[int]
    """Sequences to measure with, the first ones of the random order."""
    learnt: list[int]
    """Sequences to learn from."""
    num_shared: int
    """Tokens that all sequences begin with."""
    target_ids: Tensor
    """The draft vocabulary, int64 `[draft_vocab_size]`, ascending."""

    @classmethod
    def of(
        cls,
        settings: TrainingSettings,
        loaded: LoadedModel,
        text: TrainingText,
        features: FeatureFiles,
        layer_ids: tuple[int, ...],
        progress: Progress,
    ) -> "Material":
        """Split the sequences and choose the draft vocabulary; raises `InvalidConfig`."""
        num = features.num_sequences
        if num < 2:
            raise InvalidConfig(
                f"the text has {num} sequence; expected at least 2, one to learn from and one to "
                "measure with"
            )
        num_held_out = min(max(1, round(settings.held_out_share * num)), num - 1)
        seen = features.ids[int(features.starts[num_held_out]) :].astype("int64")
        vocab_size = loaded.module.config.get_text_config().vocab_size
        # A draft model proposes any token, as a model does elsewhere.
        size = vocab_size if settings.drafter == "draft-model" else settings.draft_vocab_size
        target_ids = most_frequent(seen, size, vocab_size)
        return cls(
            settings,
            loaded,
            text,
            features,
            layer_ids,
            progress,
            list(range(num_held_out)),
            list(range(num_held_out, num)),
            shared_beginning(features),
            target_ids.to(loaded.module.device),
        )

    def check_teaches(self, num_steps: int) -> None:
        """Raise `InvalidConfig` where no sequence is long enough for so many unrolled steps."""
        needed = max(num_steps + 2, self.num_shared + 1)
        lengths = np.diff(self.features.starts)
        for what, indices in (("learn from", self.learnt), ("measure with", self.held_out)):
            longest = int(lengths[indices].max())
            if longest < needed:
                raise InvalidConfig(
                    f"the longest of the {len(indices)} sequences to {what} has {longest} tokens, "
                    f"and all begin with the same {self.num_shared}; expected one of {needed}"
                )

    @property
    def output(self) -> Path:
        """Where everything goes."""
        return Path(self.settings.output).expanduser()

    @property
    def head_directory(self) -> Path:
        """Where what is trained goes."""
        return self.output / HEAD_FOLDER

    @property
    def embedding(self) -> Tensor:
        """The target's, `[vocab_size, hidden_size]`."""
        embeddings: Any = self.loaded.module.get_input_embeddings()
        matrix: Tensor = embeddings.weight.detach()
        return matrix

    @property
    def output_matrix(self) -> Tensor:
        """What makes logits of the target's last states, `[vocab_size, hidden_size]`."""
        matrix: Tensor = self.loaded.module.get_output_embeddings().weight.detach()
        scaling = logits_scaling(self.loaded.module)
        return matrix if scaling == 1.0 else matrix / scaling

    def card_facts(
        self, title: str, description: str, weights: dict[str, Tensor], replays_greedy: bool
    ) -> CardFacts:
        """What the card of a drafter with these trained weights says."""
        starts = self.features.starts
        return CardFacts(
            title=title,
            description=description,
            target=self.loaded.name,
            num_parameters=sum(weight.numel() for weight in weights.values()),
            num_draft_tokens=len(self.target_ids),
            num_target_tokens=len(self.output_matrix),
            num_sequences=len(self.learnt),
            num_tokens=int(starts[-1] - starts[len(self.held_out)]),
            num_held_out=len(self.held_out),
            replays_greedy=replays_greedy,
        )
