"""A target that scales its logits is learnt from as it speaks, and its head speaks alike."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import save_checkpoint
from training_files import settings_for, write_text
from transformers import GraniteConfig

from draft_service.training.checkpoint import load_checkpoint
from draft_service.training.pipeline import run
from paceline.engine.table_model import BOS_ID, EOS_ID, VOCAB_SIZE

SCALING = 4.0


@pytest.fixture(scope="module")
def granite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = GraniteConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        tie_word_embeddings=False,
        logits_scaling=SCALING,
    )
    return save_checkpoint(tmp_path_factory.mktemp("granite"), config)


@pytest.fixture(scope="module")
def its_text(granite: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.npz", granite, num_sequences=6)


@pytest.mark.parametrize("drafter", ["eagle", "medusa"])
def test_a_matrix_of_its_own_has_the_scaling_in_it(
    granite: Path, its_text: Path, tmp_path: Path, drafter: str
) -> None:
    values = {"drafter": drafter, "shape": "published", "draft_vocab_size": 2 * VOCAB_SIZE}
    head = run(settings_for(tmp_path, granite, its_text, **values))
    expected = load_file(granite / "model.safetensors")["lm_head.weight"] / SCALING
    found = load_file(head / "model.safetensors")["lm_head.weight"].float()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


def test_where_the_matrix_is_the_target_s_the_norm_has_it(
    granite: Path, its_text: Path, tmp_path: Path
) -> None:
    head = run(settings_for(tmp_path, granite, its_text))
    trained = load_checkpoint(tmp_path, torch.device("cpu"))
    assert trained is not None
    saved = load_file(head / "model.safetensors")["norm.weight"].float()
    expected = trained.weights["norm.weight"] / SCALING
    torch.testing.assert_close(saved, expected, atol=1e-4, rtol=1e-3)
