"""Heads of EAGLE-1 and EAGLE-2: loaded as published, drafting what the papers' pass says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from eagle_heads import HIDDEN, WEIGHTS, HeadFiles, random_eagle1_head
from eagle_loading import edit, edit_weights, refusal
from eagle_loading import load as load_for
from eagle_owner import TEXT, VOCAB_SIZE, loaded, owner_of, reference_drafts, rows_for
from eagle_reference import reference_logits
from safetensors.torch import load_file
from tiny_models import NUM_LAYERS, save_checkpoint, tiny_config
from torch import Tensor

from paceline.engine.eagle_checkpoint import check_fits, read_head_weights
from paceline.engine.eagle_head import HeadKV, HeadRows
from paceline.engine.head_tensors import Target
from paceline.errors import InvalidConfig
from paceline.heads.eagle_config import read_head_config

VARIANTS: dict[str, dict[str, Any]] = {
    "bias": {},
    "no bias": {"bias": False},
    "biases of q, k and v": {"qkv_bias": True},
    "theta": {"rope_theta": 3.0},
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    directory = save_checkpoint(tmp_path_factory.mktemp("target"), tiny_config(VOCAB_SIZE))
    return Target("tiny", directory, HIDDEN, VOCAB_SIZE, NUM_LAYERS, has_tied_embeddings=False)


def output_of(target: Target) -> Tensor:
    return load_file(target.directory / WEIGHTS)["lm_head.weight"]


def drafts_of(files: HeadFiles, target: Target, start: int = 0, length: int = 23) -> list[int]:
    return reference_drafts(files, TEXT[:length], start, target_output=output_of(target))


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_drafts_are_those_of_the_papers_forward_pass(
    tmp_path: Path, settings: dict[str, Any], target: Target
) -> None:
    files = random_eagle1_head(VOCAB_SIZE, **settings)
    head = loaded(files, tmp_path, target_directory=target.directory)
    assert head.feature_size == HIDDEN
    for length, start in ((2, 0), (23, 0), (60, 47)):
        said = owner_of(head).drafts(TEXT[:length], (start, length - 1))
        assert list(said.token_ids) == drafts_of(files, target, start, length)


def test_no_two_of_these_heads_have_the_same_drafts(target: Target) -> None:
    """Or else the test above would prove less than it says."""
    heads = [random_eagle1_head(VOCAB_SIZE, **settings) for settings in VARIANTS.values()]
    said = [tuple(drafts_of(head, target)) for head in heads]
    said.append(tuple(drafts_of(heads[0], target, start=9)))
    assert len(set(said)) == len(said)


def test_logits_are_those_of_the_targets_output_without_a_norm(
    tmp_path: Path, target: Target
) -> None:
    files, prompt = random_eagle1_head(VOCAB_SIZE), TEXT[:12]
    head = loaded(files, tmp_path, target_directory=target.directory)
    features = rows_for(prompt, HIDDEN)[:-1]
    (logits,) = head.forward([HeadRows(HeadKV(0), prompt[1:], features, wants_logits=True)])
    expected = reference_logits(files, torch.from_numpy(features), prompt[1:], 0, output_of(target))
    assert logits is not None
    np.testing.assert_allclose(logits[0], expected, rtol=1e-4, atol=1e-4)


def test_rounds_go_on_and_resend_as_with_any_head(tmp_path: Path, target: Target) -> None:
    files = random_eagle1_head(VOCAB_SIZE)
    owner = owner_of(loaded(files, tmp_path, target_directory=target.directory))
    owner.drafts(TEXT[:20], (0, 19))
    assert list(owner.drafts(TEXT[:26], (19, 25), start=20).token_ids) == (
        drafts_of(files, target, length=26)
    )
    assert owner.drafts(TEXT[:30], None, start=26).token_ids == ()


def test_it_is_fed_with_what_the_targets_output_is_fed_with(tmp_path: Path) -> None:
    config = read_head_config(str(random_eagle1_head(VOCAB_SIZE).write(tmp_path)))
    assert not config.is_eagle3
    assert config.feature_layers(32) == (32,)


def test_without_a_word_about_biases_the_tensors_decide(tmp_path: Path, target: Target) -> None:
    for bias in (False, True):
        directory = random_eagle1_head(VOCAB_SIZE, bias=bias).write(tmp_path)
        edit(directory, lambda config: config.pop("bias"))
        _, tensors, _ = load_for(directory, target)
        assert ("fc.bias" in tensors) is bias


@pytest.mark.parametrize("name", [*random_eagle1_head(VOCAB_SIZE, qkv_bias=True).tensors])
def test_every_tensor_that_is_missing_or_of_another_shape_or_type_is_named(
    tmp_path: Path, name: str, target: Target
) -> None:
    directory = random_eagle1_head(VOCAB_SIZE, qkv_bias=True).write(tmp_path)
    whole = load_file(directory / WEIGHTS)

    def change(tensor: Tensor | None) -> None:
        files = HeadFiles(VOCAB_SIZE, VOCAB_SIZE, is_eagle3=False)
        files.settings = {"bias": True, "qkv_bias": True}
        files.tensors = {key: t for key, t in whole.items() if key != name}
        files.tensors |= {} if tensor is None else {name: tensor}
        files.write(directory)

    change(torch.cat((whole[name], whole[name])))
    shape = [2 * len(whole[name]), *whole[name].shape[1:]]
    assert f"the tensor {name!r} has the shape {shape}; expected" in refusal(directory, target)
    change(whole[name].to(torch.int8))
    assert f"the tensor {name!r} is of type torch.int8" in refusal(directory, target)
    change(whole[name] * torch.nan)
    assert f"the tensor {name!r} holds NaN" in refusal(directory, target)
    change(None)
    if name == "embed_tokens.weight":
        _, tensors, _ = load_for(directory, target)
        own = load_file(target.directory / WEIGHTS)["model.embed_tokens.weight"]
        assert torch.equal(tensors[name], own)
    else:
        assert f"lacks 1 tensors, the first {name!r}" in refusal(directory, target)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fc.bias", {"bias": False}),
        ("layers.0.input_layernorm.weight", {}),
        ("layers.0.self_attn.q_proj.bias", {}),
        ("norm.weight", {}),
        ("d2t", {}),
    ],
)
def test_a_tensor_that_the_config_knows_nothing_of_is_named(
    tmp_path: Path, name: str, settings: dict[str, Any], target: Target
) -> None:
    files = random_eagle1_head(VOCAB_SIZE, **settings)
    files.tensors[name] = torch.ones(HIDDEN)
    message = refusal(files.write(tmp_path), target)
    assert f"that an EAGLE-1 or EAGLE-2 head has no use for, the first {name!r}" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [("bias", "yes"), ("num_hidden_layers", 2), ("model_type", "eagle"), ("logit_scale", 2.0)],
)
def test_a_setting_that_cannot_be_followed_is_named(
    tmp_path: Path, key: str, value: object, target: Target
) -> None:
    directory = random_eagle1_head(VOCAB_SIZE).write(tmp_path)
    edit(directory, lambda config: config.update({key: value}))
    assert f"{key} in its config.json is {value!r}; expected" in refusal(directory, target)


def test_a_head_for_another_target_is_refused(tmp_path: Path, target: Target) -> None:
    directory = random_eagle1_head(VOCAB_SIZE).write(tmp_path)
    edit(directory, lambda config: config.update(hidden_size=32))
    assert "its hidden_size is 32; expected 16, the hidden_size of the model 'tiny'" in (
        refusal(directory, target)
    )
    directory = random_eagle1_head(VOCAB_SIZE + 1).write(tmp_path)
    assert f"its vocab_size is {VOCAB_SIZE + 1}; expected {VOCAB_SIZE}" in (
        refusal(directory, target)
    )


class TestPickles:
    """As most of these heads are published."""

    def pickled(self, directory: Path, content: object) -> Path:
        random_eagle1_head(VOCAB_SIZE).write(directory)
        (directory / WEIGHTS).unlink()
        torch.save(content, directory / "pytorch_model.bin")
        return directory

    def read(self, directory: Path, target: Target) -> dict[str, Tensor]:
        config = read_head_config(str(directory))
        check_fits(str(directory), config, target)
        return read_head_weights(str(directory), config, target, allow_pickle=True).tensors

    def test_they_are_read_where_they_are_allowed(self, tmp_path: Path, target: Target) -> None:
        files = random_eagle1_head(VOCAB_SIZE)
        tensors = self.read(self.pickled(tmp_path, files.tensors), target)
        assert torch.equal(tensors["fc.weight"], files.tensors["fc.weight"])

    def test_elsewhere_they_are_refused_with_the_way_out(
        self, tmp_path: Path, target: Target
    ) -> None:
        directory = self.pickled(tmp_path, random_eagle1_head(VOCAB_SIZE).tensors)
        message = refusal(directory, target)
        assert "its weights are a pickle, pytorch_model.bin" in message
        assert "expected model.safetensors, or --allow-pickle true" in message

    def test_safetensors_beside_them_win(self, tmp_path: Path, target: Target) -> None:
        directory = self.pickled(tmp_path, {})
        files = random_eagle1_head(VOCAB_SIZE, seed=1)
        tensors = self.read(files.write(directory), target)
        assert torch.equal(tensors["fc.weight"], files.tensors["fc.weight"])

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            ([torch.ones(3)], "holds a list; expected tensors by name"),
            ({"state_dict": {}}, "'state_dict' in its pytorch_model.bin is a dict"),
            (Path("/"), "pytorch_model.bin cannot be read"),
        ],
        ids=["no names", "nested", "an object that would run code"],
    )
    def test_nothing_but_tensors_by_name_is_read(
        self, tmp_path: Path, target: Target, content: object, expected: str
    ) -> None:
        directory = self.pickled(tmp_path, content)
        with pytest.raises(InvalidConfig) as refused:
            self.read(directory, target)
        assert expected in refused.value.message

    def test_a_damaged_one_is_named(self, tmp_path: Path, target: Target) -> None:
        directory = self.pickled(tmp_path, {})
        for content in (b"", b"nothing", (directory / "pytorch_model.bin").read_bytes()[:40]):
            (directory / "pytorch_model.bin").write_bytes(content)
            with pytest.raises(InvalidConfig) as refused:
                self.read(directory, target)
            assert "its pytorch_model.bin cannot be read" in refused.value.message


def test_a_config_that_is_no_object_is_refused(tmp_path: Path, target: Target) -> None:
    directory = random_eagle1_head(VOCAB_SIZE).write(tmp_path)
    edit_weights(directory, lambda tensors: None)
    (directory / "config.json").write_text(json.dumps([]))
    assert "its config.json holds no object" in refusal(directory, target)
