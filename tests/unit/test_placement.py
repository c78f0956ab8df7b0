"""Nothing that runs on a card meets a tensor that is elsewhere.

Tensors here are torch's fakes, which refuse to be put together across devices and need no card.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from eagle_heads import HeadFiles, random_eagle1_head, random_head
from eagle_owner import HIDDEN, VOCAB_SIZE, rows_for
from fake_card import CARD, FakeCard, fake_tensors
from families import family_model
from medusa_heads import random_medusa
from tiny_models import NUM_LAYERS, save_checkpoint, tiny_config

from paceline.engine.eagle_checkpoint import read_head_weights
from paceline.engine.eagle_head import EagleHead, HeadRows
from paceline.engine.head_kv import HeadKV
from paceline.engine.head_rotary import rotary_embedding
from paceline.engine.head_tensors import Target
from paceline.engine.kv_cache import KVCache
from paceline.engine.medusa_checkpoint import read_medusa_weights
from paceline.engine.medusa_head import MedusaHead
from paceline.engine.model import PassSequence
from paceline.engine.paged.layout import PagedLayout
from paceline.engine.pass_plan import plan_pass
from paceline.engine.pass_runner import PassRunner
from paceline.heads.eagle_config import read_head_config
from paceline.heads.medusa_config import read_medusa_config


class Said:
    """What a head would have copied to the host, where fakes have no numbers."""

    seen: list[torch.Tensor]

    def __init__(self, target_ids: torch.Tensor, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def spread(self, drafted: torch.Tensor) -> Any:
        self.seen.append(drafted)
        return np.zeros((len(drafted), self.vocab_size), np.float32)


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
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
def test_an_eagle_head_computes_where_its_device_is(
    files: HeadFiles,
    tmp_path: Path,
    results: list[torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = str(files.write(tmp_path / "head"))
    config = read_head_config(path)
    weights = read_head_weights(path, config, target_in(tmp_path / "target"))
    rotary = rotary_embedding(config)  # made outside, since it is checked for its numbers
    monkeypatch.setattr("paceline.engine.head_rotary.rotary_embedding", lambda config: rotary)
    with fake_tensors():
        head = EagleHead(config, weights, VOCAB_SIZE, torch.bfloat16, device=FakeCard())
        kv = HeadKV(0)
        text = [*range(6)]
        features = rows_for(text, head.feature_size)
        head.forward([HeadRows(kv, text, features, wants_logits=True)])
        for ways in (None, [[0], [0, 1]]):
            tokens = [7] * (1 if ways is None else len(ways))
            head.forward([HeadRows(kv, tokens, None, wants_logits=True, ways=ways)])
    assert {rows.device for rows in results} == {CARD}


def test_medusa_heads_compute_where_their_device_is(
    tmp_path: Path, results: list[torch.Tensor]
) -> None:
    path = str(random_medusa(VOCAB_SIZE).write(tmp_path / "head"))
    weights = read_medusa_weights(path, read_medusa_config(path), target_in(tmp_path / "target"))
    with fake_tensors():
        head = MedusaHead(weights, VOCAB_SIZE, torch.float16, FakeCard())
        head.forward(rows_for([1, 2], HIDDEN), head.num_heads)
    assert {rows.device for rows in results} == {CARD}


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fakes have no numbers to be compared, and none that a graph could be captured with."""
    monkeypatch.setattr("paceline.engine.linear.has_exact_rows", lambda linear, weight: True)
    monkeypatch.setattr("paceline.engine.paged.varlen.has_exact_rows", lambda *_: True)
    monkeypatch.setattr("torch.cuda.graph_pool_handle", lambda: None)
    monkeypatch.setattr(PagedLayout, "_is_captured", lambda self, widths: False)
    monkeypatch.setattr(PassRunner, "run", torch.no_grad()(PassRunner.run.__wrapped__))


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])  # with layers of our own, its own
def test_a_pass_computes_where_its_device_is(kind: str) -> None:
    model = family_model(kind)  # in float32, for which no FlashAttention is tried
    with fake_tensors():
        runner = PassRunner(model.to(CARD), 600, True, (0, 2), FakeCard(), pool_tokens=2048)
        cache = KVCache(runner.storage, 8)
        for tree in ((), (-1, 0, -1)):
            kvs = [cache.open([number], salt="") for number in range(2)]
            assert all(cache.reserve(kv, 300) for kv in kvs)
            batch = [PassSequence(kvs[0], [3] * 290, 0), PassSequence(kvs[1], [5] * 9, 9, tree)]
            logits, features = runner.run(plan_pass(batch, runner.storage))
            assert logits.device == features.device == CARD
