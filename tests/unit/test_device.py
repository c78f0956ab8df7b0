"""What a worker's device decides, and what is said where it is not there."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from device_double import CudaDouble
from tiny_models import save_checkpoint

from paceline.config import read_settings
from paceline.engine.device import (
    CPU,
    CpuDevice,
    CudaDevice,
    Device,
    dtype_on,
    dtypes_of_card,
    open_device,
)
from paceline.engine.loading import load_model
from paceline.engine.worker_model import build_worker_model, made_ready
from paceline.errors import InvalidConfig
from target_service.config import TargetSettings

needs_no_card = pytest.mark.skipif(torch.cuda.is_available(), reason="a card is here")


@needs_no_card
@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:3"])
def test_a_worker_that_is_to_run_on_a_card_that_is_not_there_says_so(name: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"device '{name}': torch .* sees no card"):
        build_worker_model(TargetSettings(device=name))


@needs_no_card
def test_without_a_card_auto_is_the_cpu() -> None:
    assert open_device("auto") is open_device("cpu") is CPU


@pytest.mark.parametrize(
    ("name", "num_cards", "expected"), [("auto", 4, 2), ("cuda", 4, 2), ("cuda", 1, 0)]
)
def test_each_rank_of_a_host_takes_a_card_of_its_own_unless_it_sees_one(
    name: str, num_cards: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: num_cards)
    opened: list[torch.device] = []
    monkeypatch.setattr("paceline.engine.device.CudaDevice", opened.append)
    open_device(name, local_rank=2)
    assert opened == [torch.device("cuda", expected)]


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "CPU", ""])
def test_a_device_that_is_none_is_refused_with_the_settings(name: str) -> None:
    with pytest.raises(InvalidConfig, match="expected auto, cpu, cuda or cuda:<index>"):
        read_settings(TargetSettings, {"device": name})


@pytest.mark.parametrize(
    ("device", "expected"), [(CPU, "float32"), (CudaDouble(), "bfloat16")], ids=["cpu", "cuda"]
)
def test_the_type_of_weights_is_the_devices_own_unless_one_is_named(
    device: Device, expected: str
) -> None:
    assert dtype_on(device, "auto") == expected
    assert dtype_on(device, "bfloat16") == "bfloat16"


def test_cards_that_cannot_multiply_bfloat16_take_float16() -> None:
    assert dtypes_of_card((9, 0)) == ("bfloat16", "float16", "float32") == CudaDouble().dtypes
    assert dtypes_of_card((7, 5)) == ("float16", "float32")


def test_what_passes_work_in_is_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.engine.device.unused_memory", lambda device: 2**36)
    assert CudaDevice.free_memory(CudaDouble()) == 2**36 - 2**31
    monkeypatch.setattr("paceline.engine.device.unused_memory", lambda device: 2**31)
    assert CudaDevice.free_memory(CudaDouble()) == 2**30


def test_half_precision_is_for_cards_only() -> None:
    assert dtype_on(CudaDouble(), "float16") == "float16"
    with pytest.raises(InvalidConfig, match="dtype 'float16': expected one of float32, bfloat16"):
        build_worker_model(TargetSettings(device="cpu", dtype="float16"))


def test_a_card_sums_in_one_order_with_all_bits() -> None:
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = (True, True)
    matmul.allow_fp16_reduced_precision_reduction = (True, True)
    CudaDouble()
    for kind in ("bf16", "fp16"):
        assert not getattr(matmul, f"allow_{kind}_reduced_precision_reduction")
        assert not getattr(matmul, f"allow_{kind}_reduced_precision_reduction_split_k")
    assert matmul.fp32_precision == "ieee"


class _SmallHost(CpuDevice):
    """A host with little memory."""

    def free_memory(self) -> int:
        return 2**20


@pytest.mark.parametrize(
    ("device", "fraction", "share"),
    [
        (_SmallHost(), None, 0.25),
        (CudaDouble(), None, 0.9),
        (_SmallHost(), 0.5, 0.5),
        (CudaDouble(), 0.125, 0.125),
    ],
    ids=["cpu", "cuda", "cpu, told", "cuda, told"],
)
def test_the_kv_fills_the_devices_share_of_the_memory_that_is_free_there(
    device: Device, fraction: float | None, share: float, checkpoint: Path
) -> None:
    settings = TargetSettings(kv_memory_fraction=fraction)
    loaded = load_model(str(checkpoint), dtype="float32", device="cpu")
    kv_cache = made_ready(settings, replace(loaded, max_model_len=128), device).model.kv_cache
    bytes_per_token = 3 * 2 * 2 * 4 * 4  # layers, key and value, heads, their size, bytes
    if device.pages_kv:
        bytes_per_token += bytes_per_token // 16  # scratch for the branches of trees
    affordable = int(share * 2**20) // bytes_per_token
    cell = 256 if device.pages_kv else 512
    assert kv_cache.capacity == -(-affordable // cell) * cell


def test_a_card_without_room_for_the_kv_is_told_with_the_settings_that_help(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 70.00 GiB.")

    monkeypatch.setattr("paceline.engine.pass_runner.PagedStorage", full)
    loaded = load_model(str(checkpoint), dtype="float32", device="cpu")
    with pytest.raises(InvalidConfig, match="kv_cache_tokens is 4096, for which a double has no"):
        made_ready(TargetSettings(kv_cache_tokens=4096), loaded, CudaDouble())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("model"))
