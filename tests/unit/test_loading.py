"""A model is loaded whole, with what a worker must know, or refused with a clear sentence."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from eagle_heads import HeadFiles, random_eagle1_head, random_head
from safetensors.torch import load_file, save_file
from tiny_models import save_checkpoint, tiny_config
from transformers import AutoTokenizer

from paceline.engine.loading import load_model
from paceline.engine.model_directory import resolve_model, resolve_tokenizer
from paceline.engine.table_model import EOS_ID, VOCAB_SIZE
from paceline.errors import InvalidConfig


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("pristine"))


@pytest.fixture
def checkpoint(pristine: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(pristine, tmp_path / "tiny")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache of Hugging Face, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(checkpoint: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    change(weights)
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})


def refusal(model: str | Path, **settings: Any) -> str:
    with pytest.raises(InvalidConfig) as refused:
        load_model(str(model), **{"dtype": "float32", "device": "cpu"} | settings)
    return refused.value.message


@pytest.mark.parametrize("make", [random_head, random_eagle1_head])
def test_a_head_is_not_taken_for_a_model(make: Callable[[int], HeadFiles], tmp_path: Path) -> None:
    head = make(VOCAB_SIZE).write(tmp_path / "head")
    expected = f"model '{head}' is the directory of a head for the drafter eagle, not of a model"
    assert refusal(head).startswith(expected)


def test_a_directory_gives_the_model_and_what_a_worker_must_know(checkpoint: Path) -> None:
    loaded = load_model(str(checkpoint), dtype="float32", device="cpu")
    assert loaded.name == "tiny"
    assert loaded.vocab_size == VOCAB_SIZE
    assert loaded.max_model_len == 128
    assert loaded.eos_token_ids == {EOS_ID}
    assert not loaded.module.training
    assert not any(parameter.requires_grad for parameter in loaded.module.parameters())
    saved = load_file(checkpoint / "model.safetensors")
    for name, parameter in loaded.module.state_dict().items():
        assert torch.equal(parameter, saved[name]), name


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_all_weights_have_the_type_that_was_asked_for(pristine: Path, name: str) -> None:
    module = load_model(str(pristine), dtype=name, device="cpu").module
    assert {parameter.dtype for parameter in module.parameters()} == {getattr(torch, name)}


def test_rows_that_pad_the_vocabulary_are_not_counted(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tiny_config(vocab_size=320))
    loaded = load_model(str(tmp_path), dtype="float32", device="cpu")
    assert loaded.module.config.vocab_size == 320
    assert loaded.vocab_size == VOCAB_SIZE


def test_the_length_may_be_lowered_and_not_raised(pristine: Path) -> None:
    loaded = load_model(str(pristine), dtype="float32", device="cpu", max_model_len=64)
    assert loaded.max_model_len == 64
    assert re.match(
        r"max_model_len 129: expected 1 to 128, the max_position_embeddings of model",
        refusal(pristine, max_model_len=129),
    )


def test_tokens_that_end_a_text_come_from_generation_config_and_tokenizer(checkpoint: Path) -> None:
    edit(checkpoint / "generation_config.json", eos_token_id=[258, 259])
    loaded = load_model(str(checkpoint), dtype="float32", device="cpu")
    assert loaded.eos_token_ids == {EOS_ID, 258, 259}
    streamed = {file.name: file.content for file in loaded.tokenizer_files}
    assert json.loads(streamed["generation_config.json"])["eos_token_id"] == [EOS_ID, 258, 259]


def test_the_files_alone_make_the_same_tokenizer_without_torch(
    checkpoint: Path, tmp_path: Path
) -> None:
    loaded = load_model(str(checkpoint), dtype="float32", device="cpu")
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    for file in loaded.tokenizer_files:
        (unpacked / file.name).write_bytes(file.content)
    code = (
        "import sys; sys.modules['torch'] = None; from transformers import AutoTokenizer; "
        "tokenizer = AutoTokenizer.from_pretrained(sys.argv[1]); "
        "turn = [{'role': 'user', 'content': 'Déjà 10'}]; sys.stdout.write(repr("
        "tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)))"
    )
    command = [sys.executable, "-c", code, str(unpacked)]
    ids = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    turn = [{"role": "user", "content": "Déjà 10"}]
    original = AutoTokenizer.from_pretrained(checkpoint)
    assert ids == repr(
        original.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
    )


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    assert refusal(missing) == f"model '{missing}' is no directory"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()
    assert refusal(checkpoint).endswith(f"the directory '{checkpoint}' has no {name}")


def test_a_missing_shard_is_named(checkpoint: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    assert refusal(checkpoint).endswith("has no model-00002-of-00002.safetensors")


def test_a_config_that_is_not_json_is_refused(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text("{")
    assert f"model '{checkpoint}': its config.json cannot be used" in refusal(checkpoint)


def test_a_config_value_of_the_wrong_type_is_named(checkpoint: Path) -> None:
    edit(checkpoint / "config.json", hidden_size="wide")
    assert "hidden_size" in refusal(checkpoint)


@pytest.mark.parametrize("name", ["generation_config.json", "model.safetensors.index.json"])
def test_a_file_that_is_not_json_is_named(checkpoint: Path, name: str) -> None:
    (checkpoint / name).write_text("{")
    assert f"its {name} cannot be used: JSONDecodeError" in refusal(checkpoint)


def test_an_architecture_that_is_unknown_is_named(checkpoint: Path) -> None:
    edit(checkpoint / "config.json", model_type="abacus")
    assert "abacus" in refusal(checkpoint)


def test_a_model_that_is_no_causal_language_model_is_refused(checkpoint: Path) -> None:
    edit(checkpoint / "config.json", model_type="vit")
    assert "its weights cannot be loaded" in refusal(checkpoint)


def test_a_quantized_checkpoint_is_refused_by_that_name(checkpoint: Path) -> None:
    edit(checkpoint / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    assert "quantization_config" in refusal(checkpoint)


@pytest.mark.parametrize("num_bytes", [0, 7, 4000])
def test_a_file_of_weights_that_is_cut_short_is_refused(checkpoint: Path, num_bytes: int) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:num_bytes])
    assert f"model '{checkpoint}': its weights cannot be loaded" in refusal(checkpoint)


def test_a_weight_that_is_missing_is_named_and_never_left_random(checkpoint: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    edit_weights(checkpoint, lambda weights: weights.pop(name))
    assert refusal(checkpoint).endswith(f"its safetensors lack 1 weights, first '{name}'")


def test_a_weight_of_another_shape_is_refused(checkpoint: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    edit_weights(checkpoint, lambda weights: weights.update({name: torch.zeros(5, 16)}))
    assert refusal(checkpoint).endswith(
        f"weight '{name}' has shape [5, 16] in its safetensors; its config.json makes that [32, 16]"
    )


def test_weights_that_are_not_used_are_named_in_the_log(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edit_weights(checkpoint, lambda weights: weights.update(extra=torch.zeros(5)))
    load_model(str(checkpoint), dtype="float32", device="cpu")
    assert "1 weights are not used, first 'extra'" in caplog.text


def test_a_missing_tokenizer_is_refused(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    assert "its tokenizer cannot be loaded, expected tokenizer.json" in refusal(checkpoint)


def test_a_data_type_that_is_unknown_is_named(pristine: Path) -> None:
    expected = "dtype 'int3': expected one of float32, bfloat16, float16"
    assert refusal(pristine, dtype="int3") == expected


def test_a_device_that_is_unknown_or_absent_is_named(pristine: Path) -> None:
    for name in ("abacus", "meta", "mps"):
        assert refusal(pristine, device=name).startswith(f"device {name!r}: expected cpu, cuda")
    assert re.search(r"torch \S+ sees", refusal(pristine, device="cuda:99"))


def test_an_id_is_found_in_the_local_cache_without_network(pristine: Path, offline: Path) -> None:
    repository = offline / "models--riders--tiny"
    shutil.copytree(pristine, repository / "snapshots" / "c0ffee")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee")
    loaded = load_model("riders/tiny", dtype="float32", device="cpu")
    assert loaded.name == "riders/tiny"
    (repository / "snapshots" / "c0ffee" / "model.safetensors").unlink()
    assert refusal("riders/tiny").endswith("has no model.safetensors")


def test_an_id_is_looked_for_below_the_given_cache_directory(
    pristine: Path, offline: Path, tmp_path: Path
) -> None:
    repository = tmp_path / "own" / "models--riders--tiny"
    shutil.copytree(pristine, repository / "snapshots" / "c0ffee")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee")
    assert resolve_model("riders/tiny", tmp_path / "own").name == "c0ffee"


def test_for_its_tokenizer_alone_a_model_needs_no_weights(
    pristine: Path, offline: Path, tmp_path: Path
) -> None:
    repository = offline / "models--riders--light"
    folder = repository / "snapshots" / "c0ffee"
    shutil.copytree(pristine, folder)
    (folder / "model.safetensors").unlink()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee")
    assert resolve_tokenizer("riders/light") == folder
    assert resolve_tokenizer(str(folder)) == folder
    with pytest.raises(InvalidConfig, match="'riders/absent' is not to be had"):
        resolve_tokenizer("riders/absent")
    with pytest.raises(InvalidConfig, match="is no directory"):
        resolve_tokenizer(str(tmp_path / "absent"))


@pytest.mark.usefixtures("offline")
def test_an_id_that_is_not_to_be_had_is_named_with_what_was_tried() -> None:
    message = refusal("riders/absent")
    assert message.startswith("model 'riders/absent' is not to be had: it is no directory")
    assert "local Hugging Face cache" in message
    assert message.endswith("table:<seed>, a directory or a Hugging Face id")
