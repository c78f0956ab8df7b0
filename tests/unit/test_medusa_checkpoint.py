"""The config and the tensors of Medusa heads are all followed and right, or the wrong is named."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from medusa_heads import HIDDEN, LAYOUTS, NUM_HEADS, MedusaFiles, random_medusa, without_outputs
from safetensors.torch import load_file, save_file
from tiny_models import NUM_LAYERS, save_checkpoint, tiny_config
from torch import Tensor

from paceline.engine.head_features import features_of_head
from paceline.engine.head_tensors import Target
from paceline.engine.medusa_checkpoint import MedusaWeights, read_medusa_weights
from paceline.engine.medusa_head import MedusaHead
from paceline.errors import InvalidConfig
from paceline.heads.kind import check_head_kind
from paceline.heads.medusa_config import read_medusa_config

VOCAB_SIZE = 40


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    directory = save_checkpoint(tmp_path_factory.mktemp("target"), tiny_config(VOCAB_SIZE))
    return Target("tiny", directory, HIDDEN, VOCAB_SIZE, NUM_LAYERS, has_tied_embeddings=False)


def load(directory: Path, target: Target, allow_pickle: bool = False) -> MedusaWeights:
    path = str(directory)
    weights = read_medusa_weights(path, read_medusa_config(path), target, allow_pickle)
    MedusaHead(weights, VOCAB_SIZE)
    return weights


def refusal(directory: Path, target: Target, allow_pickle: bool = False) -> str:
    with pytest.raises(InvalidConfig) as refused:
        load(directory, target, allow_pickle)
    assert str(directory) in refused.value.message
    return refused.value.message


def weights_file(layout: str) -> str:
    return "model.safetensors" if layout == "vllm" else "medusa_lm_head.safetensors"


def edit(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    table = json.loads((directory / "config.json").read_text())
    change(table)
    (directory / "config.json").write_text(json.dumps(table))


def files_for(layout: str) -> MedusaFiles:
    return random_medusa(VOCAB_SIZE, 2, draft_vocab_size=24 if layout == "vllm" else None)


def test_only_numbers_of_their_own_count_as_parameters(tmp_path: Path, target: Target) -> None:
    whole = random_medusa(VOCAB_SIZE)
    blocks = sum(t.numel() for name, t in whole.tensors.items() if ".linear." in name)
    weights = load(whole.write(tmp_path / "whole", "authors"), target)
    assert weights.num_parameters == sum(t.numel() for t in whole.tensors.values())
    weights = load(without_outputs(whole).write(tmp_path / "less", "authors"), target)
    assert weights.num_parameters == blocks


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_layouts_give_the_same_heads(tmp_path: Path, layout: str, target: Target) -> None:
    files = random_medusa(VOCAB_SIZE, 2)
    weights = load(files.write(tmp_path, layout), target)
    assert [len(blocks) for blocks in weights.blocks] == [2] * NUM_HEADS
    for number, blocks in enumerate(weights.blocks):
        for place, block in enumerate(blocks):
            assert block.bias is not None
            assert torch.equal(block.weight, files.tensors[f"{number}.{place}.linear.weight"])
            assert torch.equal(block.bias, files.tensors[f"{number}.{place}.linear.bias"])
        assert torch.equal(weights.outputs[number], files.tensors[f"{number}.2.weight"])
    assert torch.equal(weights.target_ids, torch.arange(VOCAB_SIZE))
    assert features_of_head(str(tmp_path), 32, HIDDEN).layers == (32,)
    check_head_kind(str(tmp_path), "medusa")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("prefix", ["medusa_head.", "medusa_heads."])
def test_names_may_have_what_a_whole_model_puts_before_them(
    tmp_path: Path, layout: str, prefix: str, target: Target
) -> None:
    files = random_medusa(VOCAB_SIZE)
    directory = files.write(tmp_path, layout)
    tensors = load_file(directory / weights_file(layout))
    save_file({prefix + name: t for name, t in tensors.items()}, directory / weights_file(layout))
    assert torch.equal(load(directory, target).outputs[2], files.tensors["2.1.weight"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_heads_are_used_that_a_checkpoint_has(
    tmp_path: Path, layout: str, target: Target
) -> None:
    directory = random_medusa(VOCAB_SIZE).write(tmp_path, layout)
    key = "num_heads" if layout == "vllm" else "medusa_num_heads"
    edit(directory, lambda config: config.update({key: 2}))
    assert len(load(directory, target).blocks) == NUM_HEADS
    edit(directory, lambda config: config.update({key: 4}))
    first = "blocks.3.layers.0.bias" if layout == "vllm" else "3.0.linear.bias"
    assert f"lacks 3 tensors, the first {first!r}" in refusal(directory, target)


def test_a_config_that_is_the_targets_whole_one_is_understood(
    tmp_path: Path, target: Target
) -> None:
    directory = random_medusa(VOCAB_SIZE).write(tmp_path)
    config = tiny_config(VOCAB_SIZE).to_dict()
    edit(directory, lambda table: table.update({**config, **table}))
    assert len(load(directory, target).blocks) == NUM_HEADS


@pytest.mark.parametrize("name", ["lm_head.weight", "lm_heads.0.weight"])
def test_one_output_matrix_for_all_has_either_name(
    tmp_path: Path, name: str, target: Target
) -> None:
    files = without_outputs(random_medusa(VOCAB_SIZE))
    files.settings = {"original_lm_head": True}
    directory = files.write(tmp_path, "vllm")
    output = torch.randn(VOCAB_SIZE, HIDDEN)
    save_file({**files.named("vllm"), name: output}, directory / "model.safetensors")
    (shared,) = load(directory, target).outputs
    assert torch.equal(shared, output)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tied_target_lends_its_embeddings(tmp_path: Path, layout: str) -> None:
    config = tiny_config(VOCAB_SIZE)
    config.tie_word_embeddings = True
    directory = save_checkpoint(tmp_path / "tied", config)
    tied = Target("tied", directory, HIDDEN, VOCAB_SIZE, NUM_LAYERS, has_tied_embeddings=True)
    files = without_outputs(files_for(layout))
    files.settings = {"original_lm_head": True} if layout == "vllm" else {}
    (output,) = load(files.write(tmp_path / "head", layout), tied).outputs
    embeddings = load_file(directory / "model.safetensors")["model.embed_tokens.weight"]
    expected = embeddings if files.token_map is None else embeddings[files.token_map]
    assert torch.equal(output, expected)


@pytest.mark.parametrize(
    ("layout", "own"),
    [
        *product(LAYOUTS, ["0.0.linear.weight", "2.1.linear.bias", "1.2.weight"]),
        ("vllm", "token_map"),
    ],
)
def test_a_tensor_that_is_missing_or_of_another_shape_or_type_is_named(
    tmp_path: Path, layout: str, own: str, target: Target
) -> None:
    files = files_for(layout)
    directory = files.write(tmp_path, layout)
    whole, path = files.named(layout), tmp_path / weights_file(layout)
    places = dict(zip(files.tensors, (n for n in whole if n != "token_map"), strict=True))
    name = places.get(own, own)

    def refusal_with(tensor: Tensor | None) -> str:
        tensors = {key: t for key, t in whole.items() if key != name}
        save_file(tensors | ({} if tensor is None else {name: tensor}), path)
        return refusal(directory, target)

    tensor = whole[name]
    shape = [2 * len(tensor), *tensor.shape[1:]]
    said = refusal_with(torch.cat((tensor, tensor)))
    assert f"the tensor {name!r} has the shape {shape}; expected {[*tensor.shape]}" in said
    assert f"the tensor {name!r} is of type torch.int8" in refusal_with(tensor.to(torch.int8))
    if own != "token_map":
        assert f"the tensor {name!r} holds NaN or infinity" in refusal_with(tensor * torch.nan)
    if own == "0.0.linear.weight":
        assert "has neither a tensor '0.0.linear.weight' nor" in refusal_with(None)
    else:
        assert f"lacks 1 tensors, the first {name!r}" in refusal_with(None)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["lm_head.weight", "d2t", "token_map", "7.0.linear.weight"])
def test_a_tensor_without_use_is_named(
    tmp_path: Path, layout: str, name: str, target: Target
) -> None:
    directory = random_medusa(VOCAB_SIZE).write(tmp_path, layout)
    tensors = load_file(directory / weights_file(layout))
    save_file({**tensors, name: torch.ones(VOCAB_SIZE)}, directory / weights_file(layout))
    assert f"a Medusa head has no use for, the first {name!r}" in refusal(directory, target)


@pytest.mark.parametrize(
    ("token_map", "expected"),
    [
        (torch.arange(24) + 20, "'token_map' leads to the token ids 20 to 43; expected 0 to 39"),
        (torch.arange(24) - 1, "'token_map' leads to the token ids -1 to 22"),
        (torch.arange(24) // 2, "'token_map' leads from two draft ids to one token id"),
    ],
    ids=["too high", "negative", "doubled"],
)
def test_draft_tokens_that_make_no_sense_are_refused(
    tmp_path: Path, token_map: Tensor, expected: str, target: Target
) -> None:
    files = files_for("vllm")
    files.token_map = token_map
    assert expected in refusal(files.write(tmp_path, "vllm"), target)


@pytest.mark.parametrize(
    ("layout", "key", "value"),
    [
        ("authors", "medusa_num_heads", 0),
        ("authors", "medusa_num_heads", "four"),
        ("authors", "medusa_num_layers", 1.5),
        ("authors", "medusa_choices", 3),
        ("vllm", "num_heads", None),
        ("vllm", "num_hidden_layers", 0),
        ("vllm", "truncated_vocab_size", VOCAB_SIZE + 1),
        ("vllm", "medusa_fc_bias", "yes"),
        ("vllm", "original_lm_head", 7),
        ("vllm", "logit_scale", 0.5),
        ("vllm", "quantization_config", {"bits": 4}),
    ],
)
def test_a_setting_that_cannot_be_followed_is_named(
    tmp_path: Path, layout: str, key: str, value: object, target: Target
) -> None:
    directory = random_medusa(VOCAB_SIZE).write(tmp_path, layout)
    edit(directory, lambda config: config.update({key: value}))
    assert f"{key} in its config.json is {value!r}; expected" in refusal(directory, target)


@pytest.mark.parametrize(
    ("key", "value", "what"), [("hidden_size", 32, 16), ("vocab_size", 41, VOCAB_SIZE)]
)
def test_heads_for_another_target_are_refused(
    tmp_path: Path, key: str, value: int, what: int, target: Target
) -> None:
    directory = random_medusa(VOCAB_SIZE).write(tmp_path, "vllm")
    edit(directory, lambda config: config.update({key: value}))
    assert f"its {key} is {value}; expected {what}, the {key} of the model 'tiny'" in (
        refusal(directory, target)
    )


def test_pickles_as_the_authors_publish_them_are_read_where_they_are_allowed(
    tmp_path: Path, target: Target
) -> None:
    files = random_medusa(VOCAB_SIZE)
    directory = files.write(tmp_path)
    (directory / "medusa_lm_head.safetensors").unlink()
    torch.save(files.tensors, directory / "medusa_lm_head.pt")
    assert "its weights are a pickle, medusa_lm_head.pt" in refusal(directory, target)
    weights = load(directory, target, allow_pickle=True)
    assert torch.equal(weights.outputs[1], files.tensors["1.1.weight"])
    (directory / "medusa_lm_head.pt").unlink()
    assert "has no model.safetensors" in refusal(directory, target)


def test_a_head_of_another_kind_is_told_apart(tmp_path: Path) -> None:
    directory = str(random_medusa(VOCAB_SIZE).write(tmp_path))
    with pytest.raises(InvalidConfig, match="is that of a head for the drafter medusa; expected"):
        check_head_kind(directory, "eagle")
