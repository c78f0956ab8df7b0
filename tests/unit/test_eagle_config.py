"""The config of an EAGLE-3 head is followed in all that it says, or the setting is named."""

from pathlib import Path
from typing import Any

import pytest
import torch
from eagle_heads import HIDDEN
from eagle_loading import LAYOUTS, edit, new_head, new_target, refusal
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from paceline.engine.head_rotary import rotary_embedding
from paceline.engine.head_tensors import Target
from paceline.engine.table_model import VOCAB_SIZE
from paceline.heads.eagle_config import read_head_config


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return new_target(tmp_path_factory.mktemp("target"))


def test_layers_are_those_of_the_config_or_of_the_paper(tmp_path: Path) -> None:
    def layers(layout: str, **settings: Any) -> tuple[int, ...]:
        directory = new_head(**settings).write(tmp_path / "head", layout)
        return read_head_config(str(directory)).feature_layers(32)

    ids = "eagle_aux_hidden_state_layer_ids"
    assert layers("published") == layers("speculators") == (2, 16, 29)
    assert layers("speculators", **{ids: [1, 15, 28]}) == (1, 15, 28)
    assert layers("published", eagle_config={ids: [1, 2, 3], "use_aux_hidden_state": True}) == (
        1,
        2,
        3,
    )


def test_what_a_config_leaves_out_is_as_in_the_papers_code(tmp_path: Path) -> None:
    directory = new_head().write(tmp_path)
    left_out = ("head_dim", "num_key_value_heads", "draft_vocab_size", "target_hidden_size")
    edit(directory, lambda config: [config.pop(key) for key in left_out])
    edit(directory, lambda config: config.update(architectures=["LlamaForCausalLMEagle3"]))
    config = read_head_config(str(directory))
    assert (config.head_dim, config.num_kv_heads) == (HIDDEN // 4, 4)
    assert (config.draft_vocab_size, config.target_hidden_size) == (VOCAB_SIZE, HIDDEN)
    assert config.rope["rope_theta"] == 10000.0
    assert (config.attention_biases, config.has_fc_bias) == ("", False)
    assert not config.norm_before_residual


LAYER_SETTINGS = [
    ("num_hidden_layers", 2),
    ("model_type", "qwen3"),
    ("hidden_act", "gelu"),
    ("mlp_bias", True),
    ("sliding_window", 4096),
    ("quantization_config", {"bits": 4}),
    ("hidden_size", None),
    ("intermediate_size", "many"),
    ("num_attention_heads", 0),
    ("num_key_value_heads", 3),
    ("head_dim", 5),
    ("rms_norm_eps", 0),
    ("attention_bias", "yes"),
    ("rope_parameters", "none"),
]
HEAD_SETTINGS = [
    ("draft_vocab_size", VOCAB_SIZE + 1),
    ("norm_before_residual", 3),
    ("norm_before_fc", True),
    ("fc_norm", True),
    ("norm_output", True),
    ("eagle_aux_hidden_state_layer_ids", ["2"]),
    ("a_setting_of_tomorrow", 7),
]


@pytest.mark.parametrize(("key", "value"), LAYER_SETTINGS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_setting_of_the_layer_that_cannot_be_followed_is_named(
    tmp_path: Path, layout: str, key: str, value: object, target: Target
) -> None:
    directory = new_head().write(tmp_path, layout)
    nested = "transformer_layer_config" if layout == "speculators" else ""
    edit(directory, lambda config: config.update({key: value}), nested)
    message = refusal(directory, target)
    named = "rope_scaling" if key == "rope_parameters" else key
    assert f"{nested}{'.' if nested else ''}{named} in its config.json is" in message
    assert repr(value) in message
    assert "expected" in message


@pytest.mark.parametrize(("key", "value"), HEAD_SETTINGS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_setting_of_the_head_that_cannot_be_followed_is_named(
    tmp_path: Path, layout: str, key: str, value: object, target: Target
) -> None:
    directory = new_head().write(tmp_path, layout)
    edit(directory, lambda config: config.update({key: value}))
    message = refusal(directory, target)
    assert f"{key} in its config.json is {value!r}; expected" in message


@pytest.mark.parametrize("model_type", ["eagle", "peagle", "dflash", "mtp"])
def test_other_speculators_are_refused(tmp_path: Path, model_type: str, target: Target) -> None:
    directory = new_head().write(tmp_path, "speculators")
    edit(directory, lambda config: config.update(speculators_model_type=model_type))
    assert f"speculators_model_type in its config.json is '{model_type}'; expected 'eagle3'" in (
        refusal(directory, target)
    )


def test_a_head_without_the_features_of_layers_is_refused(tmp_path: Path, target: Target) -> None:
    directory = new_head(eagle_config={"use_aux_hidden_state": False}).write(tmp_path)
    edit(directory, lambda config: config["eagle_config"].update(parallel=2))
    assert "eagle_config.use_aux_hidden_state in its config.json is False" in (
        refusal(directory, target)
    )
    edit(directory, lambda config: config["eagle_config"].update(use_aux_hidden_state=True))
    assert "eagle_config.parallel in its config.json is 2" in refusal(directory, target)


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "rope_type is 'dynamic'"),
        ({"type": "linear"}, "rope settings"),
    ],
)
def test_rotary_embeddings_that_cannot_be_followed_are_named(
    tmp_path: Path, rope: dict[str, Any], expected: str, target: Target
) -> None:
    directory = new_head(rope_scaling=rope).write(tmp_path)
    assert expected in refusal(directory, target)


@pytest.mark.parametrize("rope_type", ["yarn", "llama3"])
def test_what_is_stretched_is_as_long_as_transformers_takes_it_to_be(
    tmp_path: Path, rope_type: str, target: Target
) -> None:
    rope = {"rope_type": rope_type, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    files = new_head(rope_scaling=rope, max_position_embeddings=64)
    config = read_head_config(str(files.write(tmp_path)))
    as_it_is_saved = files.config() | {"max_position_embeddings": 64, "rope_scaling": dict(rope)}
    expected = LlamaRotaryEmbedding(LlamaConfig(**as_it_is_saved))
    assert torch.equal(rotary_embedding(config).inv_freq, expected.inv_freq)
    directory = new_head(rope_scaling=rope, max_position_embeddings=None).write(tmp_path)
    assert "original_max_position_embeddings of the rope settings" in refusal(directory, target)
