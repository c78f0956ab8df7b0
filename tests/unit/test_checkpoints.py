"""The first layers of a model are a checkpoint of their own."""

from pathlib import Path

import pytest
import torch
from tiny_models import NUM_LAYERS, save_checkpoint
from transformers import Qwen3Config

from paceline.engine.checkpoints import truncated_checkpoint
from paceline.engine.loading import load_model
from paceline.engine.table_model import VOCAB_SIZE
from paceline.errors import InvalidConfig


def test_a_truncated_checkpoint_has_the_first_layers_and_the_same_ends(tmp_path: Path) -> None:
    target_dir = save_checkpoint(tmp_path / "target")
    draft_dir = truncated_checkpoint(target_dir, 2, tmp_path / "draft")
    target = load_model(str(target_dir), dtype="float32", device="cpu")
    draft = load_model(str(draft_dir), dtype="float32", device="cpu")
    kept = {name for name in target.module.state_dict() if ".layers.2." not in name}
    assert set(draft.module.state_dict()) == kept
    for name, weight in draft.module.state_dict().items():
        assert torch.equal(weight, target.module.state_dict()[name]), name
    assert draft.eos_token_ids == target.eos_token_ids
    assert draft.tokenizer_files[:2] == target.tokenizer_files[:2]


def test_what_is_listed_per_layer_is_cut_to_the_same_length(tmp_path: Path) -> None:
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        sliding_window=8,
        use_sliding_window=True,
    )
    draft_dir = truncated_checkpoint(
        save_checkpoint(tmp_path / "target", config), 2, tmp_path / "d"
    )
    draft = load_model(str(draft_dir), dtype="float32", device="cpu").module
    assert draft.config.layer_types == ["full_attention", "sliding_attention"]


@pytest.mark.parametrize("num_layers", [0, NUM_LAYERS + 1])
def test_more_layers_than_the_target_has_are_refused(tmp_path: Path, num_layers: int) -> None:
    target_dir = save_checkpoint(tmp_path / "target")
    with pytest.raises(InvalidConfig, match=f"num_layers {num_layers}: expected 1 to 3"):
        truncated_checkpoint(target_dir, num_layers, tmp_path / "draft")
    assert not (tmp_path / "draft").exists()
