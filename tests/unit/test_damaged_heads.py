"""Files of heads that are damaged, or made to do harm, are refused by a sentence."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from eagle_heads import WEIGHTS
from eagle_loading import edit_weights, new_head, new_target, refusal
from medusa_heads import LAYOUTS, random_medusa
from safetensors.torch import save_file
from torch import Tensor

from paceline.engine.eagle_checkpoint import read_projection
from paceline.engine.head_tensors import HeadTensors, Target
from paceline.engine.medusa_checkpoint import read_medusa_weights
from paceline.engine.pickled_tensors import PickledTensors
from paceline.engine.table_model import VOCAB_SIZE
from paceline.engine.token_residual import read_token_residual
from paceline.errors import InvalidConfig
from paceline.heads.eagle_config import read_head_config
from paceline.heads.medusa_config import read_medusa_config


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return new_target(tmp_path_factory.mktemp("target"))


@pytest.mark.parametrize(
    "index",
    ["[]", "null", '"x"', "{}", '{"weight_map": []}', '{"weight_map": {"fc.weight": 5}}']
    + ["[" * 100_000, "{"],
    ids=["list", "null", "text", "empty", "no map", "no file", "too deep", "cut"],
)
def test_an_index_that_lists_no_files_is_refused(
    tmp_path: Path, index: str, target: Target
) -> None:
    directory = new_head().write(tmp_path)
    (directory / f"{WEIGHTS}.index.json").write_text(index)
    assert "its safetensors cannot be read" in refusal(directory, target)


def test_a_config_that_is_nested_without_end_is_refused(tmp_path: Path, target: Target) -> None:
    directory = new_head().write(tmp_path)
    (directory / "config.json").write_text("[" * 100_000)
    assert "its config.json is not JSON" in refusal(directory, target)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": ["linear"]},
        {"rope_type": "linear", "factor": 0},
        {"rope_type": "linear", "factor": float("nan")},
        {"rope_theta": -1.0},
        {"rope_theta": "high"},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        | {"original_max_position_embeddings": "many"},
    ],
    ids=str,
)
def test_rotary_settings_that_give_no_angles_are_refused(
    tmp_path: Path, rope: dict[str, Any], target: Target
) -> None:
    assert "the head's rope" in refusal(new_head(rope_scaling=rope).write(tmp_path), target)


def test_numbers_that_are_too_large_to_compute_with_are_refused(
    tmp_path: Path, target: Target
) -> None:
    directory = new_head().write(tmp_path)
    edit_weights(directory, lambda tensors: tensors.update(large(tensors["fc.weight"])))
    assert "the tensor 'fc.weight' holds NaN or infinity" in refusal(directory, target)


def large(tensor: Tensor) -> dict[str, Tensor]:
    return {"fc.weight": tensor.double() * 1e300}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_heads_than_a_file_can_hold_are_refused_at_once(
    tmp_path: Path, layout: str, target: Target
) -> None:
    files = random_medusa(VOCAB_SIZE)
    key = "medusa_num_heads" if layout == "authors" else "num_heads"
    files.settings[key] = 10**12
    directory = str(files.write(tmp_path, layout))
    with pytest.raises(InvalidConfig, match="expected those of 1000000000000 heads of 1 blocks"):
        read_medusa_weights(directory, read_medusa_config(directory), target)


def pickled(tmp_path: Path, tensors: object) -> Path:
    directory = new_head().write(tmp_path)
    (directory / WEIGHTS).unlink()
    torch.save(tensors, directory / "pytorch_model.bin")
    return directory


def test_parameters_in_a_pickle_are_read_as_tensors(tmp_path: Path) -> None:
    tensors = new_head().tensors
    tensors["fc.weight"] = torch.nn.Parameter(tensors["fc.weight"])
    head = str(pickled(tmp_path, tensors))
    assert read_projection(head, read_head_config(head), 16, allow_pickle=True) is not None


@pytest.mark.parametrize(
    "change", [Tensor.to_sparse, lambda t: t.to("meta")], ids=["sparse", "meta"]
)
def test_a_tensor_in_a_pickle_without_all_its_numbers_is_refused(
    tmp_path: Path, change: Any
) -> None:
    tensors = new_head().tensors
    tensors["fc.weight"] = change(tensors["fc.weight"])
    path = pickled(tmp_path, tensors) / "pytorch_model.bin"
    with pytest.raises(InvalidConfig, match="'fc.weight' in its pytorch_model.bin is a sparse or"):
        PickledTensors("head", path)


class _Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit",)


def test_code_in_a_pickle_is_named_and_nobody_is_told_to_run_it(tmp_path: Path) -> None:
    path = pickled(tmp_path, {"fc.weight": _Code()}) / "pytorch_model.bin"
    with pytest.raises(InvalidConfig, match="Unsupported global.*exec") as refused:
        PickledTensors("head", path)
    assert "weights_only" not in refused.value.message


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_zip", [True, False])
def test_a_pickle_with_wrong_bytes_is_read_or_refused(tmp_path: Path, is_zip: bool) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(new_head().tensors, path, _use_new_zipfile_serialization=is_zip)
    whole, numbers, num_refused = path.read_bytes(), random.Random(0), 0
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[numbers.randrange(4000)] = numbers.randrange(256)
        path.write_bytes(damaged[: numbers.choice([len(whole), numbers.randrange(len(whole))])])
        try:
            PickledTensors("head", path)
        except InvalidConfig as refused:
            num_refused += 1
            assert refused.message.startswith("head: ")
    assert num_refused > 50


@pytest.mark.parametrize(
    ("token_ids", "said"), [([], "is empty"), ([3, 3], "holds the token ids 3"), ([40], "ids 40")]
)
def test_rows_of_tokens_that_make_no_sense_are_refused(
    tmp_path: Path, token_ids: list[int], said: str
) -> None:
    tensors = {
        "token_residual.embed_proj.weight": torch.zeros(16, 16),
        "token_residual.rows": torch.zeros(len(token_ids), 16, dtype=torch.int8),
        "token_residual.scales": torch.zeros(len(token_ids)),
        "token_residual.token_ids": torch.tensor(token_ids, dtype=torch.int64),
    }
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(InvalidConfig, match=said):
        read_token_residual(HeadTensors(str(tmp_path)), torch.zeros(40, 16))
