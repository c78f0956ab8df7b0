"""The matrices of a drafter's head on a CPU, for a row or a few at a time.

Reading the weights is nearly all that a step of a head costs, so they are packed for oneDNN and
kept in as few bytes as the worker's type says; what goes in and comes out is float32. Unlike
`paceline.engine.linear` it promises nothing about bits: a draft cannot change the text.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.engine.linear import PackedLinear, can_pack


class HeadLinear:
    """`[N, I]` to `[N, O]`, float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        """`dtype`: of the weights while they are kept."""
        self.num_parameters = weight.numel() + (0 if bias is None else bias.numel())
        self._dtype = dtype
        self._weight = weight.to(dtype)
        self._bias = None if bias is None else bias.to(dtype)
        self._packed: PackedLinear | None = None
        if weight.device.type == "cpu" and can_pack(dtype):
            self._packed = PackedLinear(self._weight, self._bias)
            self._weight = torch.empty(0)  # oneDNN has a copy of its own

    def __call__(self, rows: Tensor) -> Tensor:
        """The layer itself."""
        rows = rows.to(self._dtype)
        if self._packed is not None:
            return self._packed(rows).float()
        return F.linear(rows, self._weight, self._bias).float()
