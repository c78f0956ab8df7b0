"""What one training step sees: whole sequences, packed one behind the other without padding.

Row i of a sequence is made of the target's features at token i and the embedding of token i + 1;
it learns what the target says behind token i + 1, which follows from the target's last state there.
Nothing is learnt of what all sequences begin with, nor of what would follow the last token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draft_service.training.features import FeatureFiles

LONGEST = 2048
"""Rows of one sequence that see one another; a longer one is taken in pieces, like one whose first
features a draft never got."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `start` to `end` of the feature files: a sequence or a piece of one."""

    start: int
    end: int
    offset: int
    """Tokens of the sequence before it."""

    @property
    def num_rows(self) -> int:
        """Rows that it makes: all but the last two tokens have a token to be learnt."""
        return self.end - self.start - 2


@dataclass(frozen=True, slots=True)
class Feed:
    """What of the features a drafter is fed with."""

    columns: slice
    lag: int = 0
    """How many tokens behind that of a row its features are: 0 or 1."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of several spans."""

    features: Tensor
    """Float32 `[num_rows, …]`, what the drafter is fed with."""
    before: Tensor
    """Float32 `[num_spans, lag, …]`, the same of the tokens in front of each span's first row."""
    first_ids: Tensor
    """Int64 `[num_spans]`, the token of each span's first row."""
    token_ids: Tensor
    """Int64 `[num_rows]`, the token behind that of each row."""
    teacher_states: Tensor
    """Float32 `[num_rows, hidden_size]`, the target's last state at those tokens."""
    positions: Tensor
    """Int64 `[num_rows]`, within the span."""
    offsets: Tensor
    """Int64 `[num_rows]`, within the sequence."""
    bounds: tuple[tuple[int, int], ...]
    """First row and the end of each span."""

    def to(self, device: torch.device) -> "Batch":
        """The same on a device."""
        return Batch(
            self.features.to(device),
            self.before.to(device),
            self.first_ids.to(device),
            self.token_ids.to(device),
            self.teacher_states.to(device),
            self.positions.to(device),
            self.offsets.to(device),
            self.bounds,
        )

    def num_ahead(self) -> Tensor:
        """Int64 `[num_rows]`, how many rows of its span are behind each."""
        ends = torch.cat(
            [self.positions.new_full((end - first,), end - first) for first, end in self.bounds]
        )
        return ends - 1 - self.positions


def spans_of(features: FeatureFiles, indices: Sequence[int]) -> list[Span]:
    """The spans of these sequences, in order; those that make no row are left out."""
    spans = []
    for index in indices:
        first, end = (int(features.starts[place]) for place in (index, index + 1))
        for start in range(first, end - 2, LONGEST):
            spans.append(Span(start, min(start + LONGEST + 2, end), start - first))
    return spans


def packed(spans: Sequence[Span], tokens_per_step: int) -> list[list[Span]]:
    """Spans in order, as many for each step as have no more rows than `tokens_per_step`."""
    steps: list[list[Span]] = []
    room = 0
    for span in spans:
        if not steps or span.num_rows > room:
            steps.append([])
            room = tokens_per_step
        steps[-1].append(span)
        room -= span.num_rows
    return steps


def read_batch(features: FeatureFiles, spans: Sequence[Span], feed: Feed) -> Batch:
    """The rows of these spans, read from disk."""
    hidden_size = features.hidden_size
    lengths = [span.num_rows for span in spans]
    ends = np.cumsum(lengths)
    fed = [
        features.states[span.start : span.end - 2 + feed.lag, feed.columns].astype(np.float32)
        for span in spans
    ]
    lasts = [features.states[span.start + 1 : span.end - 1, -hidden_size:] for span in spans]
    ids = [features.ids[span.start + 1 : span.end - 1] for span in spans]
    return Batch(
        features=torch.from_numpy(np.concatenate([rows[feed.lag :] for rows in fed])),
        before=torch.from_numpy(np.stack([rows[: feed.lag] for rows in fed])),
        first_ids=torch.tensor([int(features.ids[span.start]) for span in spans]),
        token_ids=torch.from_numpy(np.concatenate(ids).astype(np.int64)),
        teacher_states=torch.from_numpy(np.concatenate(lasts).astype(np.float32)),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        offsets=torch.cat([span.offset + torch.arange(span.num_rows) for span in spans]),
        bounds=tuple(
            (int(end - length), int(end)) for length, end in zip(lengths, ends, strict=True)
        ),
    )


def shared_beginning(features: FeatureFiles) -> int:
    """Tokens that all sequences begin with: a chat template's instructions."""
    first = features.ids[features.starts[0] : features.starts[1]]
    num_shared = len(first)
    for start, end in zip(features.starts[1:-1], features.starts[2:], strict=True):
        other = features.ids[start : min(end, start + num_shared)]
        differs = np.flatnonzero(other != first[: len(other)])
        num_shared = int(differs[0]) if len(differs) else len(other)
    return num_shared
