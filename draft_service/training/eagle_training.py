"""Trains an EAGLE-3 head (arXiv 2503.01840) from the stages' files to a checkpoint.

The recipe is the one measured for the default model (docs/drafters.md): the layer begins as the
target's last, the output matrix is the target's and stays, and each of the unrolled steps learns
the target's law over the draft vocabulary, later steps with less weight.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draft_service.training.batches import Batch, shared_beginning
from draft_service.training.distillation_loss import distillation_loss, learnt_rows
from draft_service.training.draft_vocabulary import most_frequent
from draft_service.training.eagle import EagleTrainee, initial_weights
from draft_service.training.eagle_export import (
    LAYER_PREFIX,
    Verifier,
    save_published,
    save_with_token_residual,
)
from draft_service.training.evaluation import Evaluation
from draft_service.training.features import FeatureFiles
from draft_service.training.progress import Progress
from draft_service.training.settings import TrainingSettings
from draft_service.training.text import TrainingText
from draft_service.training.token_residual import TokenResidual, table_of, with_token_residual
from draft_service.training.trainer import Plan, planned_steps, train
from draft_service.training.unrolling import true_tokens, unrolled
from paceline.engine.eagle_config import HeadConfig
from paceline.engine.loading import LoadedModel

STEP_DECAY = 0.8
"""Weight of an unrolled step's loss relative to the one before: it is reached only where the
drafts before it were right."""


def train_eagle(
    settings: TrainingSettings,
    loaded: LoadedModel,
    text: TrainingText,
    features: FeatureFiles,
    layer_ids: tuple[int, ...],
    progress: Progress,
) -> Path:
    """Train and save the head; returns its directory."""
    output = Path(settings.output).expanduser()
    held_out, learnt = held_out_split(features.num_sequences, settings.held_out_share)
    vocab_size = loaded.module.config.get_text_config().vocab_size
    first_learnt = int(features.starts[learnt[0]])
    seen = features.ids[first_learnt:].astype("int64")
    target_ids = most_frequent(seen, settings.draft_vocab_size, vocab_size)
    target_ids = target_ids.to(loaded.module.device)
    output_matrix = loaded.module.get_output_embeddings().weight.detach()
    draft_matrix = output_matrix[target_ids]
    has_token_residual = settings.shape == "token-residual"
    config = eagle_config(loaded.module, layer_ids, len(target_ids), has_token_residual)
    weights = initial_weights(loaded.module, len(layer_ids))
    embedding = input_embedding(loaded.module)
    residual = None
    if has_token_residual:
        progress.say("Computing the target's states for single tokens")
        table_ids, table = table_of(loaded.module, features)
        weights = with_token_residual(weights, weights["norm.weight"])
        residual = TokenResidual(weights, table_ids, table, vocab_size)
    for weight in weights.values():
        weight.requires_grad_()
    head = EagleTrainee(config, weights, embedding, residual)
    num_shared = shared_beginning(features)
    evaluation = Evaluation(features, text, held_out, output_matrix, target_ids, num_shared)
    steps = planned_steps(
        features, learnt, settings.num_epochs, settings.tokens_per_step, settings.seed
    )
    num_parameters = sum(weight.numel() for weight in weights.values())
    progress.say(
        f"Training an EAGLE-3 head of {num_parameters / 1e6:.1f} M parameters and "
        f"{len(target_ids)} draft tokens on {len(learnt)} sequences, {len(steps)} steps; "
        f"{len(held_out)} sequences are held out"
    )

    def loss_of(batch: Batch) -> tuple[Tensor, list[float]]:
        return unrolled_loss(head, batch, draft_matrix, settings.unrolled_steps, num_shared)

    train(
        output,
        weights,
        features,
        config.feature_size,
        Plan(steps, settings.learning_rate, settings.evaluate_every),
        loss_of,
        lambda: evaluation.measure(head, settings.unrolled_steps),
        progress,
    )
    verifier = Verifier(loaded.name, tuple(loaded.module.config.architectures or ()))
    head_directory = output / "head"
    if residual is None:
        return save_published(head_directory, config, weights, draft_matrix, target_ids, verifier)
    return save_with_token_residual(
        head_directory, config, weights, residual.table_ids, residual.folded(embedding), target_ids
    )


def unrolled_loss(
    head: EagleTrainee, batch: Batch, draft_matrix: Tensor, num_steps: int, num_shared: int
) -> tuple[Tensor, list[float]]:
    """The loss of a batch with gradients, and the mean cross entropy of each step."""
    outputs = unrolled(head, batch, num_steps, true_tokens(batch))
    is_learnt = learnt_rows(batch, num_steps, num_shared)
    counts = is_learnt.sum(dim=1).clamp(min=1)
    decay = STEP_DECAY ** torch.arange(num_steps, device=counts.device)
    loss, entropies = distillation_loss(
        [head.normed(states) for states in outputs],
        is_learnt * (decay / counts)[:, None],
        batch.teacher_states,
        draft_matrix,
    )
    return loss, (entropies / counts).tolist()


def held_out_split(num_sequences: int, share: float) -> tuple[list[int], list[int]]:
    """Sequences to measure with, the first of the random order, and those to learn from."""
    num_held_out = min(max(1, round(share * num_sequences)), num_sequences - 1)
    return list(range(num_held_out)), list(range(num_held_out, num_sequences))


def input_embedding(module: PreTrainedModel) -> Tensor:
    """The target's embedding of its tokens."""
    embeddings: Any = module.get_input_embeddings()
    matrix: Tensor = embeddings.weight.detach()
    return matrix


def eagle_config(
    module: PreTrainedModel,
    layer_ids: tuple[int, ...],
    draft_vocab_size: int,
    has_token_residual: bool,
) -> HeadConfig:
    """A head with a layer like the target's."""
    config = module.config.get_text_config()
    num_heads = config.num_attention_heads
    return HeadConfig(
        is_eagle3=True,
        layer_prefix=LAYER_PREFIX,
        hidden_size=config.hidden_size,
        target_hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=num_heads,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or num_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // num_heads,
        rms_norm_eps=config.rms_norm_eps,
        attention_biases="",
        has_fc_bias=False,
        norm_before_residual=False,
        has_token_residual=has_token_residual,
        vocab_size=config.vocab_size,
        draft_vocab_size=draft_vocab_size,
        layer_ids=layer_ids,
        rope=dict(config.rope_parameters),
    )
