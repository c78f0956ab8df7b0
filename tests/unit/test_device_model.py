"""Models on a device that takes rows whose bits depend on the width of a pass."""

import logging
from pathlib import Path

import pytest
import torch
from device_double import CudaDouble
from families import VOCAB_SIZE, family_model
from tiny_models import save_checkpoint
from torch import Tensor

from paceline.engine.device import CPU, Device
from paceline.engine.linear import PaddedLinear
from paceline.engine.loading import load_model
from paceline.engine.model import PassSequence
from paceline.engine.transformer import TransformerModel
from paceline.engine.worker_model import WorkerModel, made_ready
from paceline.errors import InvalidConfig
from target_service.config import TargetSettings

CARD = CudaDouble(2**24)


class PlaceDependent(PaddedLinear):
    """Its rows have other bits at the odd places of a block, as those of some kernels do."""

    def __call__(self, x: Tensor) -> Tensor:
        rows = super().__call__(x).clone()
        rows[1::2] *= 1 + 2**-12
        return rows


def engine(device: Device, dtype: torch.dtype = torch.float32) -> TransformerModel:
    return TransformerModel(family_model("llama", dtype), VOCAB_SIZE, 1024, 4096, device=device)


def worker(directory: Path, device: Device) -> WorkerModel:
    loaded = load_model(str(directory), dtype="float32", device="cpu")
    return made_ready(TargetSettings(), loaded, device)


@pytest.mark.parametrize("kind", ["llama", "gemma"])  # with layers of our own, and with its own
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_is_exact_on_whole_blocks_of_a_cards_rows(kind: str, dtype: torch.dtype) -> None:
    model = TransformerModel(family_model(kind, dtype), VOCAB_SIZE, 1024, 4096, device=CARD)
    assert not model.varies_with_width


def test_numerics_tell_devices_apart() -> None:
    assert engine(CARD).numerics == engine(CudaDouble()).numerics
    assert engine(CARD).numerics != engine(CPU).numerics


def test_where_bits_depend_on_the_width_a_cpu_refuses_the_model_and_a_card_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = save_checkpoint(tmp_path)
    caplog.set_level(logging.WARNING, "paceline.engine")
    exact = worker(directory, CARD)
    assert not exact.varies_with_width
    assert caplog.messages == []
    monkeypatch.setattr("paceline.engine.linear.PaddedLinear", PlaceDependent)
    varying = worker(directory, CARD)
    assert varying.varies_with_width
    assert varying.numerics != exact.numerics
    (sentence,) = caplog.messages
    assert "depend on the other rows of a pass on a double" in sentence
    monkeypatch.setattr("paceline.engine.linear.can_pack", lambda dtype: False)
    with pytest.raises(InvalidConfig, match="rows that depend on the other rows of a batch"):
        worker(directory, CPU)


def test_the_model_as_a_whole_is_measured_where_each_layer_is_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("paceline.engine.linear.has_exact_rows", lambda *_: True)
    monkeypatch.setattr("paceline.engine.linear.PaddedLinear", PlaceDependent)
    assert engine(CARD).varies_with_width
    monkeypatch.setattr("paceline.engine.linear.can_pack", lambda dtype: False)
    with pytest.raises(InvalidConfig, match="depend on the width of a pass on this machine"):
        engine(CPU)


class Waiting(CudaDouble):
    """Counts how often it was waited for."""

    num_waits = 0

    def synchronize(self) -> None:
        self.num_waits += 1


def test_a_pass_ends_when_it_is_computed_though_nobody_wants_its_rows() -> None:
    device = Waiting()
    model = engine(device)
    kv = model.kv_cache.open([1], salt="")
    assert model.kv_cache.reserve(kv, 20)
    before = device.num_waits
    model.forward([PassSequence(kv, [1] * 10, 1)])
    assert device.num_waits == before
    model.forward([PassSequence(kv, [1] * 10, 0)])
    assert device.num_waits == before + 1


def test_half_precision_runs_on_a_card_only() -> None:
    assert engine(CARD, torch.float16).vocab_size == VOCAB_SIZE
    with pytest.raises(InvalidConfig, match="dtype is torch.float16; float32 or bfloat16 was"):
        engine(CPU, torch.float16)
