"""Heads of drafters compute where their device is.

Torch's `meta` device stands for a card: it knows shapes and types, computes nothing, and refuses
what is put together with a tensor of the CPU.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_double import CudaDouble
from eagle_heads import HeadFiles, random_eagle1_head, random_head
from eagle_owner import HIDDEN, VOCAB_SIZE, rows_for
from medusa_heads import random_medusa
from tiny_models import NUM_LAYERS, save_checkpoint, tiny_config

from paceline.engine.eagle_checkpoint import read_head_weights
from paceline.engine.eagle_head import EagleHead, HeadRows
from paceline.engine.head_kv import HeadKV
from paceline.engine.head_tensors import Target
from paceline.engine.medusa_checkpoint import read_medusa_weights
from paceline.engine.medusa_head import MedusaHead
from paceline.heads.eagle_config import read_head_config
from paceline.heads.medusa_config import read_medusa_config

META = torch.device("meta")


class MetaCard(CudaDouble):
    """A card that computes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.torch_device = META


class Said:
    """Where a head would have copied what it says to the host."""

    seen: list[torch.device]

    def __init__(self, target_ids: torch.Tensor, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def spread(self, drafted: torch.Tensor) -> Any:
        self.seen.append(drafted.device)
        return np.zeros((len(drafted), self.vocab_size), np.float32)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    monkeypatch.setattr(Said, "seen", [], raising=False)
    monkeypatch.setattr("paceline.engine.eagle_head.DraftVocabulary", Said)
    monkeypatch.setattr("paceline.engine.medusa_head.DraftVocabulary", Said)
    return Said.seen


def target_in(directory: Path) -> Target:
    save_checkpoint(directory, tiny_config(VOCAB_SIZE))
    return Target("tiny", directory, HIDDEN, VOCAB_SIZE, NUM_LAYERS, has_tied_embeddings=False)


@pytest.mark.parametrize(
    "files", [random_head(VOCAB_SIZE), random_eagle1_head(VOCAB_SIZE)], ids=["EAGLE-3", "EAGLE-1"]
)
def test_an_eagle_head_drafts_chains_and_trees_on_its_device(
    files: HeadFiles, tmp_path: Path, devices: list[torch.device]
) -> None:
    path = str(files.write(tmp_path / "head"))
    config = read_head_config(path)
    weights = read_head_weights(path, config, target_in(tmp_path / "target"))
    head = EagleHead(config, weights, VOCAB_SIZE, torch.bfloat16, device=MetaCard())
    kv, text = HeadKV(0), [*range(6)]
    features = rows_for(text, head.feature_size)
    head.forward([HeadRows(kv, text, features, wants_logits=True)])
    head.forward([HeadRows(kv, [7], None, wants_logits=True)])
    head.forward([HeadRows(kv, [7, 8], None, wants_logits=True, ways=[[0], [0, 1]])])
    assert devices == [META] * 3


def test_medusa_heads_draft_on_their_device(tmp_path: Path, devices: list[torch.device]) -> None:
    path = str(random_medusa(VOCAB_SIZE).write(tmp_path / "head"))
    weights = read_medusa_weights(path, read_medusa_config(path), target_in(tmp_path / "target"))
    head = MedusaHead(weights, VOCAB_SIZE, torch.float16, MetaCard())
    head.forward(rows_for([1, 2], HIDDEN), head.num_heads)
    assert devices == [META] * head.num_heads
