"""A row of a linear layer has the same bits, whatever the other rows of the call."""

import pytest
import torch
from device_double import CudaDouble
from torch import Tensor
from torch.nn import functional

from paceline.engine.linear import (
    MAX_ROWS,
    WIDE,
    ExactLinear,
    LinearFactory,
    PackedLinear,
    PaddedLinear,
    has_exact_rows,
)
from paceline.errors import InvalidConfig

pytestmark = pytest.mark.usefixtures("several_threads")

DTYPES = (torch.float32, torch.bfloat16)
SHAPES = ((192, 320), (1536, 96), (33, 57))


def weights(num_inputs: int, num_outputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    weight = torch.randn(num_outputs, num_inputs) / num_inputs**0.5
    return weight.to(dtype), torch.randn(num_outputs).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("use_packed", [True, False])
@pytest.mark.parametrize(("num_inputs", "num_outputs"), SHAPES)
def test_every_width_and_place_gives_a_row_the_same_bits(
    num_inputs: int, num_outputs: int, use_packed: bool, dtype: torch.dtype
) -> None:
    linear = LinearFactory(dtype, use_packed).make(*weights(num_inputs, num_outputs, dtype))
    x = torch.randn(MAX_ROWS + 90, num_inputs).to(dtype)
    rows = linear(x)
    for width in (1, 2, 3, 7, 16, 23, 65, 300, MAX_ROWS, MAX_ROWS + 1, MAX_ROWS + 89):
        assert torch.equal(linear(x[:width]), rows[:width])
        assert torch.equal(linear(x[-width:]), rows[-width:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("use_packed", [True, False])
def test_a_layer_computes_what_torch_computes(use_packed: bool, dtype: torch.dtype) -> None:
    weight, bias = weights(576, 96, dtype)
    linear = LinearFactory(dtype, use_packed).make(weight, bias)
    x, other = torch.randn(5, 576).to(dtype), torch.randn(5, 96).to(dtype)
    expected = functional.linear(x.float(), weight.float(), bias.float())

    def check(result: Tensor, wanted: Tensor) -> None:
        assert result.dtype == dtype
        tolerance = 1e-5 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(result.float(), wanted, atol=tolerance, rtol=tolerance)

    check(linear(x), expected)
    check(linear.plus(x, other), expected + other.float())
    check(linear.times(x, other), expected * other.float())
    check(linear.silu(x), functional.silu(expected))
    assert linear(x[:0]).shape == (0, 96)


@pytest.mark.parametrize("make", [PackedLinear, PaddedLinear])
@pytest.mark.parametrize("num_rows", [1, 2, 17, MAX_ROWS + 1])
def test_what_follows_a_layer_happens_to_each_row(
    make: type[PackedLinear] | type[PaddedLinear], num_rows: int
) -> None:
    linear: ExactLinear = make(*weights(64, 40, torch.float32))
    x, other = torch.randn(num_rows, 64), torch.randn(num_rows, 40)
    assert torch.equal(linear.plus(x, other)[-1:], linear.plus(x[-1:], other[-1:]))
    assert torch.equal(linear.times(x, other)[-1:], linear.times(x[-1:], other[-1:]))
    assert torch.equal(linear.silu(x)[-1:], linear.silu(x[-1:]))


class WidthDependent(PaddedLinear):
    """Right, but for the last bits of a row in a call of few rows."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) * (1 + 1e-7 * (len(x) == 3))


def test_the_check_at_load_finds_a_layer_whose_rows_depend_on_the_width() -> None:
    weight, bias = weights(64, 40, torch.float32)
    assert has_exact_rows(PaddedLinear(weight, bias), weight)
    assert not has_exact_rows(WidthDependent(weight, bias), weight)


def test_a_shape_that_fails_the_check_runs_padded_and_one_that_fails_both_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("paceline.engine.linear.PackedLinear", WidthDependent)
    linears = LinearFactory(torch.float32, use_packed=True)
    weight, bias = weights(64, 40, torch.float32)
    assert type(linears.make(weight, bias)) is PaddedLinear
    assert type(linears.make(weight, None)) is PaddedLinear
    assert linears.padded_shapes == {(40, 64, True), (40, 64, False)}
    monkeypatch.setattr("paceline.engine.linear.PaddedLinear", WidthDependent)
    with pytest.raises(InvalidConfig, match="64 inputs and 40 outputs in torch.float32"):
        LinearFactory(torch.float32, use_packed=True).make(weight, bias)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_inputs", "num_outputs"), SHAPES)
def test_on_a_card_a_layer_runs_on_whole_blocks_of_rows(
    num_inputs: int, num_outputs: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, bias = weights(num_inputs, num_outputs, dtype)
    linears = LinearFactory(dtype, use_packed=True, device=CudaDouble())
    linear = linears.make(weight, bias)
    x = torch.randn(300, num_inputs).to(dtype)
    rows = linear(x)
    seen = []

    def noted(x: Tensor, *others: Tensor) -> Tensor:
        seen.append(len(x))
        return original(x, *others)

    original = functional.linear
    monkeypatch.setattr(functional, "linear", noted)
    for width in (1, 5, 127, 128, 129, 299):
        assert torch.equal(linear(x[:width]), rows[:width])
        assert torch.equal(linear(x[-width:]), rows[-width:])
    assert set(seen) == {128}
    assert linears.varying_shapes == set()


class LateRows(PaddedLinear):
    """Right, but for the last bits of a block's second half."""

    def __call__(self, x: Tensor) -> Tensor:
        rows = super().__call__(x)
        place = torch.arange(len(x)) % 128
        return rows * (1 + 1e-6 * (place >= 64))[:, None].to(rows)


@pytest.mark.parametrize("num_outputs", [40, WIDE])
def test_all_places_of_a_cards_block_are_checked_in_layers_of_any_size(
    num_outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.engine.linear.PaddedLinear", LateRows)
    linears = LinearFactory(torch.float32, use_packed=True, device=CudaDouble())
    linears.make(*weights(8, num_outputs, torch.float32))
    assert linears.varying_shapes == {(num_outputs, 8, True)}


def test_a_shape_that_fails_the_check_runs_on_a_card_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("paceline.engine.linear.PaddedLinear", WidthDependent)
    linears = LinearFactory(torch.float32, use_packed=True, device=CudaDouble())
    linears.make(*weights(64, 40, torch.float32))
    assert linears.varying_shapes == {(40, 64, True)}


def test_without_onednn_layers_run_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    linears = LinearFactory(torch.float32, use_packed=True)
    assert type(linears.make(*weights(64, 40, torch.float32))) is PaddedLinear
