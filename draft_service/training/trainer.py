"""The training loop: the same for every drafter that learns from features.

Step n sees the same sequences and the same learning rate however often the process was killed
before it, so that the seed decides the weights.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from draft_service.training.batches import Batch, Feed, Span, packed, read_batch, spans_of
from draft_service.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from draft_service.training.evaluation import Measurement
from draft_service.training.features import FeatureFiles
from draft_service.training.optimizer import Optimizer
from draft_service.training.progress import Progress
from paceline.errors import InvalidConfig

CHECKPOINT_EVERY = 50
"""Steps between two checkpoints at most."""
CHECKPOINT_SECONDS = 60.0
"""Seconds between two checkpoints at most: work that a kill costs where steps are slow."""
REPORT_EVERY = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """What is seen in which step, and where to look how it goes."""

    steps: list[list[Span]]
    learning_rate: float
    evaluate_every: int


def planned_steps(
    features: FeatureFiles, indices: Sequence[int], num_epochs: int, tokens_per_step: int, seed: int
) -> list[list[Span]]:
    """All steps: first in the order on disk, which is random, later in other orders."""
    spans: list[Span] = []
    for epoch in range(num_epochs):
        order = np.asarray(indices)
        if epoch:
            order = np.random.default_rng((seed, epoch)).permutation(order)
        spans += spans_of(features, order.tolist())
    return packed(spans, tokens_per_step)


def train(
    directory: Path,
    weights: dict[str, Tensor],
    features: FeatureFiles,
    feed: Feed,
    plan: Plan,
    loss_of: Callable[[Batch], tuple[Tensor, list[float]]],
    measure: Callable[[], Measurement],
    progress: Progress,
) -> None:
    """Change `weights` in place until all steps are done.

    Args:
        feed: what of the features is read.
        loss_of: the loss of a batch, with gradients, and figures of it for the record.
        measure: the figures on held-out text with the weights as they are.
    """
    device = next(iter(weights.values())).device
    optimizer = Optimizer(weights.values(), plan.learning_rate, len(plan.steps))
    num_done = _resume(directory, weights, optimizer, device)
    progress.resume(num_done)
    if num_done:
        progress.say(f"Going on behind step {num_done} of {len(plan.steps)}")
    started = saved = time.monotonic()
    num_rows = 0
    for number in range(num_done, len(plan.steps)):
        batch = read_batch(features, plan.steps[number], feed).to(device)
        loss, entropies = loss_of(batch)
        loss.backward()
        norm = optimizer.step(number)
        if not all(map(math.isfinite, (norm, *entropies))):
            raise InvalidConfig(
                f"the loss is no number in step {number + 1}; expected a learning_rate of less "
                f"than {plan.learning_rate:g}"
            )
        num_rows += len(batch.token_ids)
        entry: dict[str, object] = {"step": number + 1, "losses": entropies, "gradient_norm": norm}
        is_last = number + 1 == len(plan.steps)
        if (number + 1) % REPORT_EVERY == 0 or is_last:
            rate = num_rows / (time.monotonic() - started)
            shown = " ".join(f"{entropy:.3f}" for entropy in entropies)
            progress.say(f"step {number + 1}/{len(plan.steps)}  loss {shown}  {rate:.0f} tokens/s")
        if (number + 1) % plan.evaluate_every == 0 or is_last:
            measurement = measure()
            entry["held_out"] = asdict(measurement)
            progress.say(_shown(number + 1, measurement))
        progress.record(entry)
        is_due = (number + 1) % CHECKPOINT_EVERY == 0
        if is_due or is_last or time.monotonic() - saved >= CHECKPOINT_SECONDS:
            save_checkpoint(directory, Checkpoint(number + 1, weights, optimizer.state()))
            saved = time.monotonic()


def _resume(
    directory: Path, weights: dict[str, Tensor], optimizer: Optimizer, device: torch.device
) -> int:
    """Steps that are done already, with the weights as they were then."""
    checkpoint = load_checkpoint(directory, device)
    if checkpoint is None:
        return 0
    shapes = {name: weight.shape for name, weight in weights.items()}
    if {name: weight.shape for name, weight in checkpoint.weights.items()} != shapes:
        raise InvalidConfig(
            f"the checkpoint in {str(directory)!r} has other weights than this version trains; "
            "without it, the training begins anew"
        )
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(checkpoint.weights[name])
    optimizer.load_state(checkpoint.optimizer)
    return checkpoint.num_steps


def _shown(step: int, measurement: Measurement) -> str:
    losses = " ".join(f"{loss:.3f}" for loss in measurement.losses)
    top1 = " ".join(f"{share:.1%}" for share in measurement.top1)
    passes = "  ".join(f"K={k}: {value:.3f}" for k, value in measurement.tokens_per_pass.items())
    return f"step {step}  held-out loss {losses}  top-1 {top1}  tokens per pass {passes}"
