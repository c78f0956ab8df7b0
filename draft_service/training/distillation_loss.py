"""Cross entropy against the target's law over the draft vocabulary, through a frozen matrix.

The logits of a step, `[num_rows, draft_vocab_size]`, are by far the largest thing in a training
and are needed only for the loss and its gradient. So both are made together, some rows at a time:
the target's law of a row is computed once for all unrolled steps that predict the same token, and
no logits outlive their chunk.
"""

from typing import Any

import torch
from torch import Tensor

from draft_service.training.batches import Batch

CHUNK = 256
"""Rows at a time: logits that still fit a CPU's last cache."""


def distillation_loss(
    predictions: list[Tensor],
    weights: Tensor,
    teacher_states: Tensor,
    output_matrix: Tensor,
) -> tuple[Tensor, Tensor]:
    """The weighted sum of all cross entropies, and for each step the sum over its rows.

    Args:
        predictions: for each step `[num_rows, hidden_size]`; row i of step k is about the token
            that row i + k of step 0 is about.
        weights: `[num_steps, num_rows]` of the cross entropy of each; 0: not counted.
        teacher_states: `[num_rows, hidden_size]`, the target's, that the rows of step 0 are about.
        output_matrix: `[draft_vocab_size, hidden_size]` of head and target alike, not trained.
    """
    apply: Any = _DistillationLoss.apply
    total, sums = apply(weights, teacher_states, output_matrix, *predictions)
    return total, sums


class _DistillationLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, teacher_states: Tensor, matrix: Tensor, *predictions: Tensor
    ) -> tuple[Tensor, Tensor]:
        gradients = [torch.zeros_like(prediction) for prediction in predictions]
        total, sums = matrix.new_zeros(()), matrix.new_zeros(len(predictions))
        num_rows = len(teacher_states)
        is_counted = weights > 0
        # Of a row of step 0: whether any step is about its token.
        is_wanted = torch.stack([row.roll(step) for step, row in enumerate(is_counted)]).any(dim=0)
        for rows in is_wanted.nonzero()[:, 0].split(CHUNK):
            law = torch.softmax(teacher_states[rows] @ matrix.mT, dim=-1)
            for step, prediction in enumerate(predictions):
                own = (rows - step) % num_rows
                log_law = torch.log_softmax(prediction[own] @ matrix.mT, dim=-1)
                entropies = -torch.linalg.vecdot(law, log_law)
                total += entropies @ weights[step, own]
                sums[step] += entropies @ is_counted[step, own].to(entropies.dtype)
                difference = log_law.exp_().sub_(law)
                gradients[step][own] = (difference @ matrix) * weights[step, own, None]
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(sums)
        return total, sums

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, grad_sums: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, None, *(grad_total * gradient for gradient in ctx.saved_tensors))


def learnt_rows(batch: Batch, num_steps: int, num_shared: int) -> Tensor:
    """Bool `[num_steps, num_rows]`: whose token is in the span and not one that all begin with."""
    steps = torch.arange(num_steps, device=batch.positions.device)[:, None]
    is_within = batch.num_ahead() >= steps
    return is_within & (batch.offsets + steps + 2 >= num_shared)
