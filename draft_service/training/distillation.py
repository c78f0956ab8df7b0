"""Teaches a drafter the target's law, whatever kind of drafter it is.

A drafter's step k says which token follows k tokens further on, about the same rows of the same
text; its loss is the cross entropy against what the target says there, later steps with less
weight.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from draft_service.training.batches import Batch
from draft_service.training.distillation_loss import distillation_loss, learnt_rows
from draft_service.training.evaluation import Evaluation, Trainee
from draft_service.training.material import Material
from draft_service.training.model_card import write_card
from draft_service.training.trainer import Plan, planned_steps, train
from draft_service.training.unrolling import true_tokens

STEP_DECAY = 0.8
"""Weight of a step's loss relative to the one before: it is reached only where the drafts before it
were right."""


def distil(
    material: Material, trainee: Trainee, num_steps: int, title: str, description: str
) -> Callable[[Path], None]:
    """Train `trainee` to the end; returns what writes its model card into a directory."""
    settings, progress, features = material.settings, material.progress, material.features
    material.check_teaches(num_steps)
    weights = trainee.weights
    for weight in weights.values():
        weight.requires_grad_()
    draft_matrix = material.output_matrix[material.target_ids]
    evaluation = Evaluation(material, trainee, num_steps)
    steps = planned_steps(
        features, material.learnt, settings.num_epochs, settings.tokens_per_step, settings.seed
    )
    facts = material.card_facts(title, description, weights, evaluation.replays_greedy)
    progress.say(
        f"Training {facts.num_parameters / 1e6:.1f} M parameters for {facts.num_draft_tokens:,} "
        f"draft tokens on {facts.num_sequences:,} sequences in {len(steps):,} steps; "
        f"{facts.num_held_out:,} sequences are held out"
    )
    train(
        material.output,
        weights,
        features,
        trainee.feed,
        Plan(steps, settings.learning_rate, settings.evaluate_every),
        lambda batch: unrolled_loss(trainee, batch, draft_matrix, num_steps, material.num_shared),
        evaluation.measure,
        progress,
    )
    entries = progress.entries()
    return lambda directory: write_card(directory, facts, settings, entries)


def unrolled_loss(
    trainee: Trainee, batch: Batch, draft_matrix: Tensor, num_steps: int, num_shared: int
) -> tuple[Tensor, list[float]]:
    """The loss of a batch with gradients, and the mean cross entropy of each step."""
    predictions = trainee.predictions(batch, num_steps, true_tokens(batch))
    is_learnt = learnt_rows(batch, num_steps, num_shared)
    counts = is_learnt.sum(dim=1).clamp(min=1)
    decay = STEP_DECAY ** torch.arange(num_steps, device=counts.device)
    loss, entropies = distillation_loss(
        predictions, is_learnt * (decay / counts)[:, None], batch.teacher_states, draft_matrix
    )
    return loss, (entropies / counts).tolist()
