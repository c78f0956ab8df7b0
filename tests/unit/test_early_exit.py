"""The drafter `early-exit`: the target's first layers say what the paper's early exit says."""

import json
import resource
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from eagle_owner import GREEDY, NUMBER, SEEDED, Owner
from safetensors.torch import load_file, save_file
from tiny_models import NUM_LAYERS
from trained_exits import (
    DRAFT_VOCAB_SIZE,
    WEIGHTS,
    ExitFiles,
    exit_reference,
    random_exit,
    save_target,
)

from draft_service.config import DraftSettings
from draft_service.drafters.draft_model import ModelDrafter
from draft_service.drafters.registry import make_drafter
from draft_service.proposer import Proposer
from paceline.engine.model import PassSequence
from paceline.engine.sampling import choose_token
from paceline.engine.table_model import VOCAB_SIZE
from paceline.errors import InvalidConfig
from paceline.rounds import SequenceSettings, WorkerInfo

TEXT = [7 * i * i % VOCAB_SIZE for i in range(40)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"))


def made(
    target: Path, exit_layer: int | None = None, head: Path | None = None
) -> tuple[ModelDrafter, WorkerInfo]:
    settings = DraftSettings(
        drafter="early-exit",
        model=str(target),
        exit_layer=exit_layer,
        head=str(head or ""),
        kv_cache_tokens=512,
    )
    drafter, info = make_drafter(settings)
    assert isinstance(drafter, ModelDrafter)
    return drafter, info


def drafts_of(
    drafter: ModelDrafter, length: int = 20, settings: SequenceSettings = GREEDY
) -> list[int]:
    owner = Owner(Proposer(drafter, 16))
    return list(owner.drafts(TEXT[:length], None, settings=settings).token_ids)


def reference_drafts(
    target: Path,
    exit_layer: int,
    files: ExitFiles | None = None,
    length: int = 20,
    settings: SequenceSettings = GREEDY,
) -> list[int]:
    text = TEXT[:length]
    while len(text) < length + NUMBER:
        logits = exit_reference(target, text, exit_layer, files).float().numpy()
        text = [*text, choose_token(logits, settings, len(text), text)]
    return text[length:]


@pytest.mark.parametrize("exit_layer", [1, 2])
def test_a_layerskip_checkpoint_drafts_with_its_first_layers(target: Path, exit_layer: int) -> None:
    drafter, info = made(target, exit_layer)
    for length in (1, 20):
        assert drafts_of(drafter, length) == reference_drafts(target, exit_layer, length=length)
    assert (info.drafter, info.vocab_size) == ("early-exit", VOCAB_SIZE)
    assert info.model == f"{target.name}, first {exit_layer} layers"
    assert info.feature_layers == ()


def test_each_layer_says_something_else(target: Path) -> None:
    """Or else the tests here would prove less than they say."""
    exits = [random_exit(1), random_exit(2), random_exit(1, DRAFT_VOCAB_SIZE)]
    said = [tuple(reference_drafts(target, layer)) for layer in (1, 2, 3)]
    said += [tuple(reference_drafts(target, files.exit_layer, files)) for files in exits]
    assert len(set(said)) == len(said)


def test_a_quarter_of_the_layers_runs_where_nothing_is_said(target: Path) -> None:
    assert drafts_of(made(target)[0]) == reference_drafts(target, 1)


def test_tied_embeddings_are_the_output(tmp_path: Path) -> None:
    target = save_target(tmp_path, is_tied=True)
    assert drafts_of(made(target, 1)[0]) == reference_drafts(target, 1)


@pytest.mark.parametrize("is_tied", [False, True], ids=["own output", "tied"])
@pytest.mark.parametrize("draft_vocab_size", [None, DRAFT_VOCAB_SIZE])
@pytest.mark.parametrize("has_output", [False, True])
def test_a_trained_exit_runs_behind_the_layers_that_it_names(
    tmp_path: Path, is_tied: bool, draft_vocab_size: int | None, has_output: bool
) -> None:
    target = save_target(tmp_path / "target", is_tied)
    for exit_layer in (1, 2):
        files = random_exit(exit_layer, draft_vocab_size, has_output)
        drafter, info = made(target, head=files.write(tmp_path / "exit"))
        assert drafts_of(drafter) == reference_drafts(target, exit_layer, files)
        assert (info.model, info.vocab_size) == ("exit", VOCAB_SIZE)


def test_seeded_drafts_use_the_targets_noise(target: Path, tmp_path: Path) -> None:
    files = random_exit(2, DRAFT_VOCAB_SIZE)
    drafter, _ = made(target, head=files.write(tmp_path))
    expected = reference_drafts(target, 2, files, settings=SEEDED)
    assert drafts_of(drafter, settings=SEEDED) == expected != reference_drafts(target, 2, files)


def test_tokens_that_cannot_be_proposed_can_be_read_and_have_no_share(
    target: Path, tmp_path: Path
) -> None:
    files = random_exit(1, DRAFT_VOCAB_SIZE)
    drafter, _ = made(target, head=files.write(tmp_path))
    settings = replace(GREEDY, temperature=1.0, acceptance_rule=SEEDED.acceptance_rule)
    known = set((torch.arange(DRAFT_VOCAB_SIZE) + files.tensors["d2t"]).tolist())
    assert not set(TEXT[:20]) <= known
    for seed in range(20):
        assert set(drafts_of(drafter, settings=replace(settings, seed=seed))) <= known


def test_the_layers_that_do_not_run_are_not_read(tmp_path: Path) -> None:
    """The last layer is a hole of 16 GiB in a sparse file."""
    target = save_target(tmp_path)
    whole = load_file(target / WEIGHTS)
    expected = reference_drafts(target, 2)
    save_file({k: t for k, t in whole.items() if ".layers.2." not in k}, target / WEIGHTS)
    huge = target / "huge.safetensors"
    names = [name for name in whole if ".layers.2." in name]
    each = (1 << 34) // len(names) // 4 * 4
    header = {
        name: {"dtype": "F32", "shape": [each // 4], "data_offsets": [i * each, (i + 1) * each]}
        for i, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    with huge.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + each * len(names))
    weight_map = {name: huge.name if name in names else WEIGHTS for name in whole}
    (target / WEIGHTS).rename(target / "first.safetensors")
    weight_map = {k: "first.safetensors" if f == WEIGHTS else f for k, f in weight_map.items()}
    index = {"metadata": {}, "weight_map": weight_map}
    (target / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    drafter, _ = made(target, 2)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "KiB"
    assert drafts_of(drafter) == expected


class TestRefusals:
    """Whatever does not fit is told by name."""

    def refusal(self, target: Path, exit_layer: int | None = None, head: Path | None = None) -> str:
        with pytest.raises(InvalidConfig) as refused:
            made(target, exit_layer, head)
        return refused.value.message

    @pytest.mark.parametrize("exit_layer", [NUM_LAYERS, 40])
    def test_more_layers_than_make_a_draft(self, target: Path, exit_layer: int) -> None:
        message = self.refusal(target, exit_layer)
        assert f"exit_layer is {exit_layer}; expected 1 to 2, less than the layers" in message

    @pytest.mark.parametrize(
        ("key", "value", "expected"),
        [
            ("exit_layer", None, "a whole number of at least 1"),
            ("exit_layer", 0, "a whole number of at least 1"),
            ("exit_layer", NUM_LAYERS, "1 to 2, less than the layers of"),
            ("target", None, "a text"),
            ("draft_vocab_size", VOCAB_SIZE + 1, f"at most vocab_size, {VOCAB_SIZE}"),
            ("hidden_size", "wide", "a whole number of at least 1"),
            ("num_layers", 2, "no such setting"),
        ],
    )
    def test_a_setting_that_cannot_be_followed(
        self, tmp_path: Path, target: Path, key: str, value: object, expected: str
    ) -> None:
        files = random_exit(1)
        files.settings[key] = value
        message = self.refusal(target, head=files.write(tmp_path))
        assert f"{key} in its config.json is {value!r}; expected {expected}" in message

    @pytest.mark.parametrize(("key", "value"), [("hidden_size", 32), ("vocab_size", 999)])
    def test_an_exit_for_another_target(
        self, tmp_path: Path, target: Path, key: str, value: int
    ) -> None:
        files = random_exit(1)
        files.settings[key] = value
        assert f"its {key} is {value}; expected" in self.refusal(target, head=files.write(tmp_path))

    @pytest.mark.parametrize("name", [*random_exit(1, DRAFT_VOCAB_SIZE, has_output=True).tensors])
    def test_a_tensor_that_is_missing_or_of_another_shape_or_type(
        self, tmp_path: Path, target: Path, name: str
    ) -> None:
        files = random_exit(1, DRAFT_VOCAB_SIZE, has_output=True)
        tensor = files.tensors[name]
        files.tensors[name] = torch.cat((tensor, tensor))
        message = self.refusal(target, head=files.write(tmp_path))
        shape = [2 * len(tensor), *tensor.shape[1:]]
        assert f"the tensor {name!r} has the shape {shape}; expected {[*tensor.shape]}" in message
        files.tensors[name] = tensor.to(torch.int8)
        message = self.refusal(target, head=files.write(tmp_path))
        assert f"the tensor {name!r} is of type torch.int8" in message
        if tensor.is_floating_point():
            files.tensors[name] = tensor * torch.inf
            message = self.refusal(target, head=files.write(tmp_path))
            assert f"the tensor {name!r} holds NaN or infinity" in message
        if name not in ("lm_head.weight", "t2d"):
            del files.tensors[name]
            message = self.refusal(target, head=files.write(tmp_path))
            assert f"lacks 1 tensors, the first {name!r}" in message

    def test_a_tensor_without_use(self, tmp_path: Path, target: Path) -> None:
        files = random_exit(1)
        files.tensors["layer.self_attn.q_proj.bias"] = torch.zeros(16)
        message = self.refusal(target, head=files.write(tmp_path))
        assert "a trained exit has no use for, the first 'layer.self_attn.q_proj.bias'" in message

    def test_draft_tokens_that_make_no_sense(self, tmp_path: Path, target: Path) -> None:
        files = random_exit(1, DRAFT_VOCAB_SIZE)
        files.tensors["d2t"] += VOCAB_SIZE
        assert "'d2t' leads to the token ids" in self.refusal(target, head=files.write(tmp_path))

    def test_another_kind_of_head(self, tmp_path: Path, target: Path) -> None:
        files = random_exit(1)
        files.settings["model_type"] = "medusa"
        message = self.refusal(target, head=files.write(tmp_path))
        assert "is that of a head for the drafter medusa; expected one for early-exit" in message

    def test_a_missing_head_and_a_model_without_layers(self, tmp_path: Path, target: Path) -> None:
        assert "its config.json cannot be read" in self.refusal(target, head=tmp_path)
        with pytest.raises(InvalidConfig, match="table model, which has no layers"):
            make_drafter(DraftSettings(drafter="early-exit", model="table:7"))


def test_logits_are_those_of_the_paper(target: Path, tmp_path: Path) -> None:
    files = random_exit(2, DRAFT_VOCAB_SIZE)
    drafter, _ = made(target, head=files.write(tmp_path))
    model = drafter._model
    kv = model.kv_cache.open(TEXT[:9], salt="")
    assert model.kv_cache.reserve(kv, 9)
    (rows,) = model.forward([PassSequence(kv, TEXT[:9], 1)])
    expected = exit_reference(target, TEXT[:9], 2, files).numpy()
    assert model.feature_size == 0
    np.testing.assert_allclose(rows[0], expected, rtol=1e-4, atol=1e-4)
