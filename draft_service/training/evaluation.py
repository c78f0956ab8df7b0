"""How well a head does on sequences that it was not trained on.

The loss and how often the first choice is the target's, for every unrolled step behind true
tokens; and an exact replay of serving: the head drafts behind every token of an answer, then the
rounds of the greedy loop are walked along the answer (`replay.py`). Answers that the target gave
greedily are what serving would give again, so their figures are those of a live loop; where there
are none, sampled ones stand in, and `replays_greedy` says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from draft_service.training.batches import Batch, Feed, Span, packed, read_batch, spans_of
from draft_service.training.distillation_loss import distillation_loss, learnt_rows
from draft_service.training.material import Material
from draft_service.training.replay import following_tokens, num_accepted, tokens_per_pass
from draft_service.training.unrolling import NextTokens, true_tokens

DRAFT_LENGTHS = (1, 3, 5, 7)
"""Drafts per round that are replayed."""
TOKENS_PER_BATCH = 2048
CHUNK = 256
"""Rows whose logits are held at once."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Of one evaluation."""

    losses: list[float]
    """Cross entropy for each unrolled step."""
    top1: list[float]
    """Share of rows whose first choice is the target's, for each unrolled step."""
    tokens_per_pass: dict[str, float]
    """Tokens per target pass, for each number of drafts a round."""


class Trainee(Protocol):
    """A drafter that is being trained."""

    weights: dict[str, Tensor]
    """What is trained, by name."""
    feed: Feed
    """What of the features it is fed with."""
    max_drafts: int | None
    """Tokens that it can draft; None: any number."""

    def predictions(self, batch: Batch, num_steps: int, next_tokens: NextTokens) -> list[Tensor]:
        """For each step `[num_rows, hidden_size]`, as the output matrix takes them.

        Row i of step k is about the token that row i + k of step 0 is about, if `next_tokens` are
        those of the text.
        """
        ...


class Evaluation:
    """Measures heads on the held-out sequences."""

    def __init__(self, material: Material, trainee: Trainee, num_steps: int) -> None:
        """`num_steps`: how many steps of the trainee are measured behind true tokens."""
        self._trainee = trainee
        self._num_steps = num_steps
        self._features = features = material.features
        self._output_matrix = material.output_matrix
        self._draft_matrix = self._output_matrix[material.target_ids]
        self._target_ids = material.target_ids
        self._num_shared = material.num_shared
        self._draft_lengths = [k for k in DRAFT_LENGTHS if k <= (trainee.max_drafts or k)]
        is_greedy = material.text.temperatures[features.order] == 0
        self.replays_greedy = bool(is_greedy[np.asarray(material.held_out)].any())
        """Whether the replayed answers are greedy ones."""
        spans = []
        self._answers: dict[Span, int] = {}
        for index in material.held_out:
            own = spans_of(features, [index])
            spans += own
            start = int(material.text.answer_starts[features.order[index]])
            # An answer in pieces is not replayed: there are few, and drafts begin anew in each.
            has_rows = len(own) == 1 and start <= own[0].num_rows
            if has_rows and is_greedy[index] == self.replays_greedy:
                self._answers[own[0]] = start
        self._batches = packed(spans, TOKENS_PER_BATCH)
        self._best: dict[int, Tensor] = {}

    @torch.inference_mode()
    def measure(self) -> Measurement:
        """The figures of the trainee as it is now."""
        num_steps = self._num_steps
        sums, hits, counts = (torch.zeros(num_steps) for _ in range(3))
        accepted: list[list[int]] = []
        for number, spans in enumerate(self._batches):
            batch = read_batch(self._features, spans, self._trainee.feed)
            batch = batch.to(self._output_matrix.device)
            if number not in self._best:
                self._best[number] = _best(batch.teacher_states, self._output_matrix)
            predictions = self._trainee.predictions(batch, num_steps, true_tokens(batch))
            is_learnt = learnt_rows(batch, num_steps, self._num_shared)
            _, entropies = distillation_loss(
                predictions, is_learnt.float(), batch.teacher_states, self._draft_matrix
            )
            sums += entropies.cpu()
            counts += is_learnt.sum(dim=1).cpu()
            for step, prediction in enumerate(predictions):
                rows = is_learnt[step].nonzero()[:, 0]
                choices = self._choices(prediction[rows])
                hits[step] += (choices == self._best[number][rows + step]).sum().cpu()
            accepted += self._replayed(batch, spans)
        return Measurement(
            (sums / counts).tolist(),
            (hits / counts).tolist(),
            {str(length): tokens_per_pass(accepted, length) for length in self._draft_lengths},
        )

    def _replayed(self, batch: Batch, spans: Sequence[Span]) -> list[list[int]]:
        """For each answer of the batch how many drafts hold behind each of its tokens."""
        starts = [self._answers.get(span) for span in spans]
        wanted = torch.cat(
            [
                torch.arange(first + start - 1, end)
                for start, (first, end) in zip(starts, batch.bounds, strict=True)
                if start is not None
            ]
            or [torch.zeros(0, dtype=torch.int64)]
        ).to(batch.token_ids.device)
        if not len(wanted):
            return []
        num_drafts = max(self._draft_lengths)

        def chosen(predictions: Tensor) -> Tensor:
            tokens = torch.zeros_like(batch.token_ids)
            tokens[wanted] = self._choices(predictions[wanted])
            return tokens

        predictions = self._trainee.predictions(
            batch, num_drafts, lambda predictions, step: chosen(predictions)
        )
        drafts = torch.stack([chosen(prediction) for prediction in predictions]).cpu()
        accepted = []
        for span, start, (first, end) in zip(spans, starts, batch.bounds, strict=True):
            if start is None:
                continue
            ids = torch.from_numpy(self._features.ids[span.start : span.end].astype(np.int64))
            following = following_tokens(ids, num_drafts, span.num_rows)
            accepted.append(num_accepted(drafts[:, first:end], following)[start - 1 :].tolist())
        return accepted

    def _choices(self, predictions: Tensor) -> Tensor:
        """The target's tokens that the head puts first."""
        return self._target_ids[_best(predictions, self._draft_matrix)]


def _best(states: Tensor, matrix: Tensor) -> Tensor:
    """The row of the matrix that each state goes best with."""
    return torch.cat([(rows @ matrix.mT).argmax(dim=-1) for rows in states.split(CHUNK)])
