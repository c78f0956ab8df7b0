"""The matrices of a drafter's head, for a row or a few at a time.

Reading the weights is nearly all that a step of a head costs, so on a CPU they are packed for
oneDNN, and everywhere kept in as few bytes as the worker's type says; what goes in and comes out is
float32. Unlike `paceline.engine.linear` it promises nothing about bits: a draft cannot change the
text.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.engine.device import CPU
from paceline.engine.linear import PackedLinear, can_pack

FEW_ROWS = 4
"""Up to so many the eight-bit kernel is as fast as the packed one, or faster (LOG.md)."""


_EIGHT_BIT_STEP = 64
"""The eight-bit kernel reads beyond the end of rows whose length is no multiple of its step, which
is this or less."""


class HeadLinear:
    """`[N, I]` to `[N, O]`, float32."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
        device: torch.device = CPU.torch_device,
    ) -> None:
        """`dtype`: of the weights while they are kept.

        `torch.int8`: eight bits and a scale for each output, with what goes in as bfloat16. The
        weights are then kept in bfloat16 too, for a prompt's many rows and for odd sizes.
        """
        self._few: _EightBitLinear | None = None
        if dtype == torch.int8:
            if weight.shape[1] % _EIGHT_BIT_STEP == 0:
                self._few = _EightBitLinear(weight, bias)
            dtype = torch.bfloat16
        self._dtype = dtype
        self._weight = weight.to(device, dtype)
        self._bias = None if bias is None else bias.to(device, dtype)
        self._packed: PackedLinear | None = None
        if device.type == "cpu" and can_pack(dtype):
            self._packed = PackedLinear(self._weight, self._bias)
            self._weight = torch.empty(0)  # oneDNN has a copy of its own

    def __call__(self, rows: Tensor) -> Tensor:
        """The layer itself."""
        if self._few is not None and 0 < len(rows) <= FEW_ROWS:
            return self._few(rows)
        rows = rows.to(self._dtype)
        if self._packed is not None:
            return self._packed(rows).float()
        return F.linear(rows, self._weight, self._bias).float()


class _EightBitLinear:
    """Weights as integers of eight bits."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        highest = weight.float().abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny)
        # The scales that are used, so that rounding those does not add to the error.
        self._scales = (highest / 127).to(torch.bfloat16)
        scaled = (weight.float() / self._scales.float()[:, None]).round().clamp(-127, 127)
        self._weight = scaled.to(torch.int8)
        self._bias = None if bias is None else bias.float()

    def __call__(self, rows: Tensor) -> Tensor:
        computed: Tensor = torch.ops.aten._weight_int8pack_mm(
            rows.to(torch.bfloat16), self._weight, self._scales
        ).float()
        return computed if self._bias is None else computed + self._bias
