"""Loads EAGLE-3 heads for the tiny target, or says why not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from eagle_heads import HIDDEN, WEIGHTS, HeadFiles, random_head
from safetensors.torch import load_file, save_file
from tiny_models import NUM_LAYERS, save_checkpoint
from torch import Tensor

from paceline.engine.eagle_checkpoint import check_fits, read_head_weights
from paceline.engine.eagle_head import EagleHead
from paceline.engine.head_tensors import Target
from paceline.engine.table_model import VOCAB_SIZE
from paceline.errors import InvalidConfig
from paceline.heads.eagle_config import HeadConfig, read_head_config

LAYOUTS = ["published", "speculators"]
DRAFT_VOCAB_SIZE = 100
Change = Callable[[dict[str, Any]], object]


def new_target(directory: Path) -> Target:
    save_checkpoint(directory)
    return Target("tiny", directory, HIDDEN, VOCAB_SIZE, NUM_LAYERS, has_tied_embeddings=False)


def new_head(draft_vocab_size: int = DRAFT_VOCAB_SIZE, **settings: Any) -> HeadFiles:
    return random_head(VOCAB_SIZE, draft_vocab_size, **settings)


def load(directory: Path, target: Target) -> tuple[HeadConfig, dict[str, Tensor], Tensor]:
    config = read_head_config(str(directory))
    check_fits(str(directory), config, target)
    weights = read_head_weights(str(directory), config, target)
    EagleHead(config, weights, VOCAB_SIZE)
    return config, weights.tensors, weights.target_ids


def refusal(directory: Path, target: Target) -> str:
    with pytest.raises(InvalidConfig) as refused:
        load(directory, target)
    assert str(directory) in refused.value.message or "the head's" in refused.value.message
    return refused.value.message


def edit(directory: Path, change: Change, part: str = "") -> None:
    table = json.loads((directory / "config.json").read_text())
    change(table[part] if part else table)
    (directory / "config.json").write_text(json.dumps(table))


def edit_weights(directory: Path, change: Change) -> None:
    tensors = load_file(directory / WEIGHTS)
    change(tensors)
    save_file(tensors, directory / WEIGHTS)
