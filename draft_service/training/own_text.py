"""The stage in which the target writes the text to learn from, batch after batch.

Each batch is kept in a file of its own, drawn with numbers of its own, so that a killed run goes on
behind the last whole batch and ends in the same text. In the end they become `text.npz` and the
features of it, sequence by sequence; each file goes when its features have moved.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from draft_service.training.atomic_files import write_whole
from draft_service.training.features import FeatureFiles
from draft_service.training.generation import generate
from draft_service.training.openings import Opening
from draft_service.training.text import TrainingText, joined, read_text, write_text

BATCH_SIZE = 128
TEMPERATURES = (0.0, 0.7)
"""Of answers, by turns: greedy ones are what most requests ask for, others are more varied."""
TEXT_FILE = "text.npz"
_FOLDER = "generated"


def write_own_text(
    directory: Path,
    module: PreTrainedModel,
    layer_ids: Sequence[int],
    opening_of: Callable[[int], Opening | None],
    end_ids: frozenset[int],
    max_length: int,
    num_tokens: int,
    seed: int,
    on_progress: Callable[[int], None],
) -> TrainingText:
    """The text in `directory`, written if it is not there; `move_features` has its features.

    Args:
        opening_of: the opening of each sequence by its number; None: there are no more.
        end_ids: tokens that end a text.
        max_length: most tokens of a sequence.
        num_tokens: how many to write; the last batch is written whole.
        on_progress: hears how many tokens there are.
    """
    vocab_size = module.config.get_text_config().vocab_size
    path = directory / TEXT_FILE
    if path.exists():
        return read_text(path, vocab_size)
    batches, written = [], 0
    for number in count():
        openings = [
            opening
            for index in range(number * BATCH_SIZE, (number + 1) * BATCH_SIZE)
            if (opening := opening_of(index)) is not None
        ]
        if written >= num_tokens or not openings:
            break
        batch = _tokens_file(directory, number)
        if not batch.exists():
            generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
            _write_batch(
                directory, number, module, layer_ids, openings, end_ids, max_length, generator
            )
        batches.append(read_text(batch, vocab_size))
        written += len(batches[-1].ids)
        on_progress(written)
    write_text(path, joined(batches))
    return read_text(path, vocab_size)


def move_features(
    directory: Path, features: FeatureFiles, on_progress: Callable[[int], None]
) -> None:
    """Fill the features of the own text of `directory` from the files of its batches.

    `on_progress` hears how many sequences there are.
    """
    for first in range(0, features.num_sequences, BATCH_SIZE):
        path = _states_file(directory, first // BATCH_SIZE)
        if features.num_captured < first:
            return  # those before have gone to another directory: all are to be captured
        if not path.exists():
            continue  # moved already
        end = min(first + BATCH_SIZE, features.num_sequences)
        features.states[features.starts[first] : features.starts[end]] = np.load(
            path, mmap_mode="r"
        )
        features.record(end)
        path.unlink()
        on_progress(end)


def _write_batch(
    directory: Path,
    number: int,
    module: PreTrainedModel,
    layer_ids: Sequence[int],
    openings: Sequence[Opening],
    end_ids: frozenset[int],
    max_length: int,
    generator: torch.Generator,
) -> None:
    temperatures = [TEMPERATURES[index % len(TEMPERATURES)] for index in range(len(openings))]
    generated = generate(module, layer_ids, openings, temperatures, end_ids, max_length, generator)
    states = torch.stack([row for sequence in generated for row in sequence.states]).numpy()
    lengths = [len(sequence.token_ids) for sequence in generated]
    text = TrainingText(
        np.concatenate([np.array(sequence.token_ids) for sequence in generated]),
        np.concatenate(([0], np.cumsum(lengths))),
        np.array([sequence.answer_start for sequence in generated]),
        np.array(temperatures, np.float32),
    )
    write_whole(_states_file(directory, number), partial(np.save, arr=states))
    write_text(_tokens_file(directory, number), text)


def _tokens_file(directory: Path, number: int) -> Path:
    return directory / _FOLDER / f"{number:05}.npz"


def _states_file(directory: Path, number: int) -> Path:
    return directory / _FOLDER / f"{number:05}.npy"
