"""What a draft or a target worker is told must fit together, and is told apart by name."""

from pathlib import Path

import pytest
import torch
from eagle_heads import HIDDEN, WEIGHTS, random_head
from tiny_models import NUM_LAYERS, save_checkpoint, tiny_config

from draft_service.config import DraftSettings
from draft_service.drafters.registry import make_drafter
from paceline.config import Settings, read_settings
from paceline.engine.table_model import VOCAB_SIZE
from paceline.engine.worker_model import build_worker_model
from paceline.errors import InvalidConfig
from target_service.config import TargetSettings


@pytest.mark.parametrize(
    ("cls", "options", "expected"),
    [
        (DraftSettings, {"drafter": "draft-model"}, "--model .* is required by the drafter draft-"),
        (DraftSettings, {"model": "m"}, "--model .* is 'm', but the drafter suffix should"),
        (DraftSettings, {"drafter": "eagle"}, "--head .* is required by the drafter eagle"),
        (
            DraftSettings,
            {"target_tokenizer": "t"},
            "--target-tokenizer .* is 't', but the drafter suffix should",
        ),
        (DraftSettings, {"head": "h"}, "--head .* is 'h', but the drafter suffix should"),
        (DraftSettings, {"drafter": "medusa"}, "--head .* is required by the drafter medusa"),
        (DraftSettings, {"exit_layer": "3"}, "--exit-layer .* is 3, but the drafter suffix"),
        (
            DraftSettings,
            {"drafter": "early-exit", "head": "h", "exit_layer": "3"},
            "--exit-layer .* is 3, but the head names it",
        ),
        (
            DraftSettings,
            {"draft_tree": "static"},
            "--draft-tree .* is static, but the drafter suffix makes chains only",
        ),
        (TargetSettings, {"head": "h", "feature_layers": "1,2"}, "--feature-layers .* should not"),
    ],
)
def test_settings_that_contradict_each_other_are_named(
    cls: type[Settings], options: dict[str, str], expected: str
) -> None:
    with pytest.raises(InvalidConfig, match=expected):
        read_settings(cls, options)


def test_a_worker_says_how_many_parameters_its_drafter_has(tmp_path: Path) -> None:
    target = save_checkpoint(tmp_path / "target")
    config = tiny_config()
    hidden, middle, rows = config.hidden_size, config.intermediate_size, config.vocab_size
    key_value = hidden // config.num_attention_heads * config.num_key_value_heads
    layer = 2 * hidden**2 + 2 * hidden * key_value + 3 * hidden * middle + 2 * hidden
    expected = NUM_LAYERS * layer + hidden + 2 * rows * hidden
    for settings, number in (
        (DraftSettings(drafter="self", model=str(target)), expected),
        (DraftSettings(), 0),
    ):
        assert make_drafter(settings)[1].num_parameters == number


def test_the_table_model_has_no_hidden_states_for_a_head(tmp_path: Path) -> None:
    head = str(random_head(40).write(tmp_path))
    with pytest.raises(InvalidConfig, match="the model 'table:7' has no hidden states"):
        build_worker_model(TargetSettings(model="table:7", head=head), head=head)
    with pytest.raises(InvalidConfig, match="table model, which has no layers"):
        make_drafter(DraftSettings(drafter="eagle", model="table:7", head=head))


def test_a_pickled_head_drafts_only_where_the_settings_allow_it(tmp_path: Path) -> None:
    model = str(save_checkpoint(tmp_path / "target"))
    files = random_head(VOCAB_SIZE, eagle_aux_hidden_state_layer_ids=[0])
    files.tensors["fc.weight"] = files.tensors["fc.weight"][:, :HIDDEN].clone()
    head = files.write(tmp_path / "head")
    (head / WEIGHTS).unlink()
    torch.save(files.tensors, head / "pytorch_model.bin")
    settings = DraftSettings(drafter="eagle", model=model, head=str(head))
    with pytest.raises(InvalidConfig, match="--allow-pickle true"):
        make_drafter(settings)
    _, info = make_drafter(settings.model_copy(update={"allow_pickle": True}))
    assert info.feature_layers == (0,)
