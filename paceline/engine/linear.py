"""Linear layers, fast at few rows and with the same bits whatever the number of rows.

`F.linear` gives a row other bits in a batch of another width. On a CPU weights packed for oneDNN do
not, from two rows on, and read the weights once for up to some ten rows; so a single row runs as
two. Every shape is checked when a model is loaded, for its type and for the number of threads; one
that fails, a machine without oneDNN, or another device gets `F.linear` at one fixed width.

Knows nothing about models. Invariant: a row of a result depends only on that row of the input, but
in the layers of `LinearFactory.varying_shapes`, which only a device has that takes them.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from paceline.engine.device import CPU, Device
from paceline.engine.elementwise import apply_row_exact
from paceline.errors import InvalidConfig

MAX_ROWS = 512
MAX_ROWS_WIDE = 64
"""Rows of one call of a kernel, and of one with a vocabulary of outputs. More run as several calls,
so that the widths which occur can be checked."""
WIDE = 16384
"""Outputs from which a layer counts as wide."""
_PROBED_WIDTHS = (*range(1, 18), 24, 31, 33, 48, 64, 65, 128, 192, 257, 511)
_PROBED_STARTS = (1, 2, 7, 16, 40, 71, 100, 125)


class ExactLinear(Protocol):
    """A linear layer, alone and with what usually follows it; `[N, I]` to `[N, O]`."""

    def __call__(self, x: Tensor) -> Tensor:
        """The layer itself."""

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """The layer's result plus `other`."""

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """The layer's result times `other`."""

    def silu(self, x: Tensor) -> Tensor:
        """The SiLU of the layer's result."""


class PackedLinear:
    """Weights in oneDNN's own layout; a sum, a product or a SiLU happens on the way out."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        # The operations that torch's own compiler uses for its CPU code.
        self._weight = torch.ops.mkldnn._reorder_linear_weight.default(weight)
        self._bias = bias
        self._num_outputs = weight.shape[0]
        self._max_rows = max_rows(weight)
        self._pointwise = torch.ops.mkldnn._linear_pointwise.default
        self._binary = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor) -> Tensor:
        return self._unary(x, "none")

    def silu(self, x: Tensor) -> Tensor:
        return self._unary(x, "swish")

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        return self._with(x, other, "add")

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        return self._with(x, other, "mul")

    def _unary(self, x: Tensor, after: str) -> Tensor:
        if 1 < x.shape[0] <= self._max_rows:
            return self._pointwise(x, self._weight, self._bias, after, [], "")  # type: ignore[no-any-return]  # torch.ops is untyped
        if x.shape[0] == 1:
            return self._unary(torch.cat((x, x)), after)[:1]
        if x.shape[0] == 0:
            return x.new_empty(0, self._num_outputs)
        return torch.cat([self._unary(part, after) for part in x.split(self._max_rows)])

    def _with(self, x: Tensor, other: Tensor, operation: str) -> Tensor:
        if 1 < x.shape[0] <= self._max_rows:
            return self._binary(x, other, self._weight, self._bias, operation)  # type: ignore[no-any-return]  # torch.ops is untyped
        if x.shape[0] == 1:
            return self._with(torch.cat((x, x)), torch.cat((other, other)), operation)[:1]
        parts = zip(x.split(self._max_rows), other.split(self._max_rows), strict=True)
        return torch.cat([self._with(part, others, operation) for part, others in parts])


class PaddedLinear:
    """`F.linear`, always on the same number of rows."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, block_rows: int = CPU.linear_rows
    ) -> None:
        self._weight = weight
        self._bias = bias
        self._block_rows = block_rows

    def __call__(self, x: Tensor) -> Tensor:
        num_rows, block_rows = x.shape[0], self._block_rows
        if num_rows == block_rows:  # as passes on a GPU are made to be: no copy then
            return functional.linear(x, self._weight, self._bias)
        if num_rows == 0:
            return x.new_empty(0, self._weight.shape[0])
        padded = functional.pad(x, (0, 0, 0, -num_rows % block_rows))
        parts = [functional.linear(p, self._weight, self._bias) for p in padded.split(block_rows)]
        return torch.cat(parts)[:num_rows]

    def silu(self, x: Tensor) -> Tensor:
        return apply_row_exact(functional.silu, self(x))

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        return self(x) + other

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        return self(x) * other


class LinearFactory:
    """Makes the linear layers of one model, and checks each shape once.

    Raises `InvalidConfig` for a shape that is exact neither packed nor padded, unless the device
    takes such.
    """

    def __init__(self, dtype: torch.dtype, use_packed: bool, device: Device = CPU) -> None:
        self._device = device
        self._use_packed = use_packed and device.packs_weights and can_pack(dtype)
        self._is_packed_exact: dict[tuple[int, int, bool], bool] = {}
        self._padded_shapes: set[tuple[int, int, bool]] = set()
        self.varying_shapes: set[tuple[int, int, bool]] = set()
        """Those of `padded_shapes` whose rows have other bits at another place in a block."""

    @property
    def padded_shapes(self) -> set[tuple[int, int, bool]]:
        """(outputs, inputs, has a bias) of the layers that run at the fixed width."""
        return set(self._padded_shapes)

    def make(
        self,
        weight: Tensor,  # [O, I]
        bias: Tensor | None,  # [O]
    ) -> ExactLinear:
        """Return a layer with these weights."""
        shape = (weight.shape[0], weight.shape[1], bias is not None)
        if self._use_packed and self._is_packed_exact.get(shape, True):
            packed = PackedLinear(weight, bias)
            if shape not in self._is_packed_exact:
                self._is_packed_exact[shape] = has_exact_rows(packed, weight)
            if self._is_packed_exact[shape]:
                return packed
        padded = PaddedLinear(weight, bias, self._device.linear_rows)
        blocks = 2 * self._device.linear_rows
        if shape not in self._padded_shapes and not has_exact_rows(padded, weight, blocks):
            if self._device.refuses_varying_width:
                raise InvalidConfig(
                    f"A linear layer of {shape[1]} inputs and {shape[0]} outputs in {weight.dtype} "
                    "gives rows that depend on the other rows of a batch, packed or not, on this "
                    "machine; another data type or number of threads may help."
                )
            self.varying_shapes.add(shape)
        self._padded_shapes.add(shape)
        return padded


@torch.inference_mode()
def has_exact_rows(linear: ExactLinear, weight: Tensor, least_rows: int = 0) -> bool:
    """Whether a row has the same bits at every probed width and place.

    Probes as many rows as the layer takes in one call, or `least_rows` if those are more.
    """
    generator = torch.Generator().manual_seed(0)
    num_outputs, num_inputs = weight.shape
    most = max(max_rows(weight), least_rows)
    x = torch.randn(most, num_inputs, generator=generator).to(weight)
    rows = linear(x)
    if not all(torch.equal(linear(x[:n]), rows[:n]) for n in _PROBED_WIDTHS if n < most):
        return False
    starts = [start for start in _PROBED_STARTS if start + 8 <= most]
    if not all(torch.equal(linear(x[i : i + 8]), rows[i : i + 8]) for i in starts):
        return False
    other = torch.randn(17, num_outputs, generator=generator).to(weight)
    x = x[:17]
    rows = torch.cat((linear.silu(x), linear.plus(x, other), linear.times(x, other)), dim=1)
    return all(
        torch.equal(
            torch.cat(
                (
                    linear.silu(x[:n]),
                    linear.plus(x[:n], other[:n]),
                    linear.times(x[:n], other[:n]),
                ),
                dim=1,
            ),
            rows[:n],
        )
        for n in (1, 2, 3, 5, 8, 16)
    )


def max_rows(weight: Tensor) -> int:
    """Rows that a layer with this weight takes in one call."""
    return MAX_ROWS if weight.shape[0] < WIDE else MAX_ROWS_WIDE


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN has packed kernels for the type on this machine."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32
