"""The tensors of an EAGLE-3 head are all read and right, or the wrong one is named."""

import json
from pathlib import Path

import pytest
import torch
from eagle_heads import HIDDEN, WEIGHTS, HeadFiles, random_head
from eagle_loading import (
    DRAFT_VOCAB_SIZE,
    LAYOUTS,
    Change,
    edit,
    edit_weights,
    load,
    new_head,
    new_target,
    refusal,
)
from safetensors.torch import load_file, save_file
from tiny_models import NUM_LAYERS, save_checkpoint, tiny_config

from paceline.engine.eagle_checkpoint import read_head_weights
from paceline.engine.eagle_head import EagleHead
from paceline.engine.head_tensors import Target
from paceline.engine.table_model import VOCAB_SIZE
from paceline.heads.eagle_config import read_head_config


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return new_target(tmp_path_factory.mktemp("target"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_layouts_give_the_same_head(tmp_path: Path, layout: str, target: Target) -> None:
    files = new_head(norm_before_residual=True, rope_theta=500000.0)
    config, tensors, target_ids = load(files.write(tmp_path, layout), target)
    assert config.norm_before_residual
    assert config.rope == {"rope_type": "default", "rope_theta": 500000.0}
    assert (config.vocab_size, config.draft_vocab_size) == (VOCAB_SIZE, DRAFT_VOCAB_SIZE)
    for name, tensor in files.tensors.items():
        if name not in ("d2t", "t2d"):
            assert torch.equal(tensors[name.removeprefix("midlayer.")], tensor), name
    assert torch.equal(target_ids, files.tensors["t2d"].nonzero()[:, 0])


def test_embeddings_and_output_come_from_the_target_where_the_head_has_none(
    tmp_path: Path, target: Target
) -> None:
    files = new_head(VOCAB_SIZE)
    for name in ("embed_tokens.weight", "lm_head.weight"):
        del files.tensors[name]
    _, tensors, target_ids = load(files.write(tmp_path), target)
    own = load_file(target.directory / WEIGHTS)
    assert torch.equal(tensors["embed_tokens.weight"], own["model.embed_tokens.weight"])
    assert torch.equal(tensors["lm_head.weight"], own["lm_head.weight"])
    assert torch.equal(target_ids, torch.arange(VOCAB_SIZE))


@pytest.mark.parametrize("borrowed", [[], ["embed_tokens.weight"], ["t2d"]])
def test_only_numbers_of_its_own_count_as_parameters(
    tmp_path: Path, target: Target, borrowed: list[str]
) -> None:
    files = new_head()
    for name in borrowed:
        del files.tensors[name]
    directory = str(files.write(tmp_path))
    weights = read_head_weights(directory, read_head_config(directory), target)
    own = sum(t.numel() for n, t in files.tensors.items() if n not in ("d2t", "t2d"))
    assert EagleHead(read_head_config(directory), weights, VOCAB_SIZE).num_parameters == own


def test_tied_embeddings_of_the_target_are_its_output(tmp_path: Path) -> None:
    tied = tiny_config()
    tied.tie_word_embeddings = True
    directory = save_checkpoint(tmp_path / "tied", tied)
    target = Target("tied", directory, HIDDEN, VOCAB_SIZE, NUM_LAYERS, has_tied_embeddings=True)
    files = new_head(VOCAB_SIZE)
    del files.tensors["lm_head.weight"]
    _, tensors, _ = load(files.write(tmp_path / "head"), target)
    own = load_file(directory / WEIGHTS)
    assert torch.equal(tensors["lm_head.weight"], own["model.embed_tokens.weight"])


def test_weights_in_several_files_are_found_by_the_index(tmp_path: Path, target: Target) -> None:
    directory = new_head().write(tmp_path)
    tensors = load_file(directory / WEIGHTS)
    (directory / WEIGHTS).unlink()
    parts = {"a.safetensors": [*tensors][:5], "b.safetensors": [*tensors][5:]}
    for file, names in parts.items():
        save_file({name: tensors[name] for name in names}, directory / file)
    weight_map = {name: file for file, names in parts.items() for name in names}
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert torch.equal(load(directory, target)[1]["fc.weight"], tensors["fc.weight"])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [*new_head(attention_bias=True).tensors])
def test_every_tensor_that_is_missing_or_of_another_shape_or_type_is_named(
    tmp_path: Path, layout: str, name: str, target: Target
) -> None:
    files = new_head(attention_bias=True)
    directory = files.write(tmp_path, layout)
    whole = load_file(directory / WEIGHTS)
    name = name.replace("midlayer.", "layers.0.") if layout == "speculators" else name
    tensor = whole[name]

    save_file({**whole, name: torch.cat((tensor, tensor))}, directory / WEIGHTS)
    shape = [len(tensor) * 2, *tensor.shape[1:]]
    assert f"the tensor {name!r} has the shape {shape}; expected {[*tensor.shape]}" in (
        refusal(directory, target)
    )
    save_file({**whole, name: tensor.to(torch.int8)}, directory / WEIGHTS)
    assert f"the tensor {name!r} is of type torch.int8; expected" in refusal(directory, target)

    save_file({key: t for key, t in whole.items() if key != name}, directory / WEIGHTS)
    if name in ("embed_tokens.weight", "t2d"):
        load(directory, target)
    else:
        assert f"lacks 1 tensors, the first {name!r}" in refusal(directory, target)


def test_a_tensor_without_use_is_named(tmp_path: Path, target: Target) -> None:
    files = new_head()
    files.tensors["midlayer.self_attn.q_norm.weight"] = torch.ones(6)
    assert "has 1 tensors that an EAGLE-3 head has no use for, the first 'midlayer.self_attn." in (
        refusal(files.write(tmp_path), target)
    )


def test_tensors_of_another_version_than_the_configs_are_known_for_what_they_are(
    tmp_path: Path, target: Target
) -> None:
    files = new_head(VOCAB_SIZE)
    files.tensors = {
        name.replace("midlayer.", "layers.0."): tensor
        for name, tensor in files.tensors.items()
        if "hidden_norm" not in name and "input_layernorm" not in name
    }
    directory = files.write(tmp_path)
    assert "EAGLE-1 and EAGLE-2, but its config.json is that of EAGLE-3" in (
        refusal(directory, target)
    )
    own_keys = ("draft_vocab_size", "target_hidden_size")
    directory = new_head().write(tmp_path)
    edit(directory, lambda config: [config.pop(key) for key in own_keys])
    assert "as in heads of EAGLE-3, but its config.json has no draft_vocab_size" in (
        refusal(directory, target)
    )


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_tensor_that_holds_something_else_than_numbers_is_named(
    tmp_path: Path, target: Target, value: float
) -> None:
    directory = new_head().write(tmp_path)
    edit_weights(directory, lambda tensors: tensors["fc.weight"][3, 5].fill_(value))
    assert "the tensor 'fc.weight' holds NaN or infinity" in refusal(directory, target)


def test_pickles_are_refused_and_what_cannot_be_read_is_named(
    tmp_path: Path, target: Target
) -> None:
    directory = new_head().write(tmp_path)
    (directory / WEIGHTS).write_bytes(b"nothing")
    assert "its safetensors cannot be read" in refusal(directory, target)
    (directory / WEIGHTS).unlink()
    assert "has no model.safetensors" in refusal(directory, target)
    (directory / "pytorch_model.bin").write_bytes(b"")
    assert "its weights are a pickle, pytorch_model.bin" in refusal(directory, target)
    (directory / "config.json").write_text("[]")
    assert "its config.json holds no object" in refusal(directory, target)
    (directory / "config.json").write_text("{")
    assert "its config.json is not JSON" in refusal(directory, target)
    (directory / "config.json").unlink()
    assert "its config.json cannot be read (No such file" in refusal(directory, target)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda t: t["d2t"].add_(200), "'d2t' leads to the token ids"),
        (lambda t: t["d2t"].sub_(300), "'d2t' leads to the token ids"),
        (lambda t: t["d2t"][5:7].copy_(torch.tensor([9, 8])), "from two draft ids to one"),
        (lambda t: t["t2d"].logical_not_(), "'t2d' marks other tokens than those"),
    ],
    ids=["too high", "too low", "doubled", "another mask"],
)
def test_draft_tokens_that_make_no_sense_are_refused(
    tmp_path: Path, change: Change, expected: str, target: Target
) -> None:
    directory = new_head().write(tmp_path)
    edit_weights(directory, change)
    assert expected in refusal(directory, target)


def test_a_head_for_another_target_is_refused(tmp_path: Path, target: Target) -> None:
    wide = HeadFiles(VOCAB_SIZE, DRAFT_VOCAB_SIZE, target_hidden_size=32)
    assert "its target_hidden_size is 32; expected 16, the hidden_size of the model 'tiny'" in (
        refusal(wide.write(tmp_path / "a"), target)
    )
    other = random_head(VOCAB_SIZE + 3, DRAFT_VOCAB_SIZE)
    assert f"its vocab_size is {VOCAB_SIZE + 3}; expected {VOCAB_SIZE}, the vocab_size of" in (
        refusal(other.write(tmp_path / "b"), target)
    )
    deep = new_head(eagle_aux_hidden_state_layer_ids=[0, 1, 9])
    assert "is fed with the input of layer 9; the model 'tiny' has 3 layers" in (
        refusal(deep.write(tmp_path / "c"), target)
    )


def test_what_the_target_lacks_in_place_of_the_head_is_named(
    tmp_path: Path, target: Target
) -> None:
    files = new_head(hidden_size=8, target_hidden_size=HIDDEN)
    hidden, both = 8, 16
    for name, tensor in files.tensors.items():
        rows = hidden if tensor.shape[0] == HIDDEN else tensor.shape[0]
        columns = {HIDDEN: hidden, 2 * HIDDEN: both}.get(tensor.shape[-1], tensor.shape[-1])
        files.tensors[name] = tensor[:rows] if tensor.ndim == 1 else tensor[:rows, :columns]
    del files.tensors["embed_tokens.weight"]
    message = refusal(files.write(tmp_path), target)
    assert (
        "has no tensor 'embed_tokens.weight'; 'model.embed_tokens.weight' of the model" in message
    )
    assert f"expected {[VOCAB_SIZE, hidden]}" in message
