"""Runs a text through the target once and keeps its hidden states (`features.py`).

Sequences of similar length share a pass, padded on the right, where causal attention does not see
it. Goes on behind what is captured already.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from draft_service.training.features import FeatureFiles
from draft_service.training.text import IntArray
from paceline.engine.features import packed_features

CHUNK = 256
"""Sequences that are sorted by length, and captured or not, together."""
MAX_TOKENS = 4096
"""Tokens of a pass, padding included, unless one sequence has more."""


@torch.inference_mode()
def capture_features(
    module: PreTrainedModel,
    layer_ids: Sequence[int],
    features: FeatureFiles,
    on_progress: Callable[[int], None],
    chunk: int = CHUNK,
) -> None:
    """Capture what is missing; `on_progress` hears how many sequences are there."""
    lengths = np.diff(features.starts)
    for first in range(features.num_captured, features.num_sequences, chunk):
        end = min(first + chunk, features.num_sequences)
        for batch in _batches(list(range(first, end)), lengths):
            _capture(module, layer_ids, features, batch)
        features.record(end)
        on_progress(end)


def _batches(indices: list[int], lengths: IntArray) -> Iterator[list[int]]:
    batch: list[int] = []
    for index in sorted(indices, key=lambda index: (lengths[index], index)):
        if batch and (len(batch) + 1) * lengths[index] > MAX_TOKENS:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _capture(
    module: PreTrainedModel, layer_ids: Sequence[int], features: FeatureFiles, batch: list[int]
) -> None:
    spans = [(features.starts[index], features.starts[index + 1]) for index in batch]
    token_ids = torch.zeros(len(batch), max(end - start for start, end in spans), dtype=torch.int64)
    for row, (start, end) in zip(token_ids, spans, strict=True):
        row[: end - start] = torch.from_numpy(features.ids[start:end])
    states = hidden_states(module, layer_ids, token_ids.to(module.device))
    for row, (start, end) in zip(states, spans, strict=True):
        features.states[start:end] = row[: end - start].cpu().numpy()


def hidden_states(module: PreTrainedModel, layer_ids: Sequence[int], token_ids: Tensor) -> Tensor:
    """Float16 `[batch, length, width]`: inputs of the layers, then what the last norm gives."""
    output = module.base_model(token_ids, use_cache=False, output_hidden_states=True)
    inputs = [output.hidden_states[layer] for layer in layer_ids]
    return packed_features([*inputs, output.last_hidden_state])
