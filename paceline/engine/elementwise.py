"""Elementwise functions and rotary tables whose rows do not depend on their neighbours.

Torch computes the last elements of a run, and of each thread's share of it, with scalar code whose
exponential differs in the last bit from the vector code, and where a run ends depends on the number
of rows. So rows start at a multiple of the vector length here, and no thread starts within one.

Knows nothing about models. Invariant: a row of the result depends only on that row of the input.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

VECTOR_RUN = 64
"""Elements that torch's vector loops take at a time, at most (two 512-bit vectors of bfloat16)."""
GRAIN_SIZE = 32768
"""Up to so many elements torch leaves an elementwise operation to one thread."""


def apply_row_exact(
    function: Callable[[Tensor], Tensor],
    x: Tensor,  # [..., W]
) -> Tensor:
    """Return `function(x)` for an elementwise function, with the same bits for any row count."""
    if x.device.type != "cpu":
        return function(x)  # a card computes each element by itself
    width = x.shape[-1]
    padded_width = -(-width // VECTOR_RUN) * VECTOR_RUN
    rows = x.reshape(-1, width)
    if padded_width != width:
        rows = functional.pad(rows, (0, padded_width - width))
    if rows.numel() <= GRAIN_SIZE or padded_width % _aligned_width(torch.get_num_threads()) == 0:
        result = function(rows)
    else:
        block = max(1, GRAIN_SIZE // padded_width)
        result = torch.cat([function(part) for part in rows.split(block)])
    return result[:, :width].reshape(x.shape)


class RotaryTable:
    """The cosines and sines of a rotary embedding module, looked up by position.

    They are computed in blocks of a fixed size, since their bits, too, depend on the run that they
    are computed in. Takes the place of the module's `forward`.
    """

    BLOCK_SIZE = 512

    def __init__(self, forward: Callable[..., tuple[Tensor, Tensor]], num_positions: int) -> None:
        self._forward = forward
        self._num_positions = num_positions
        self._tables: dict[str | None, tuple[Tensor, Tensor]] = {}

    def __call__(
        self,
        x: Tensor,  # only its type counts
        position_ids: Tensor,  # [1, N]
        layer_type: str | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, each `[1, N, D]`."""
        if layer_type not in self._tables:
            self._tables[layer_type] = self._compute(x, layer_type)
        cos, sin = self._tables[layer_type]
        return cos[position_ids], sin[position_ids]

    def _compute(self, x: Tensor, layer_type: str | None) -> tuple[Tensor, Tensor]:
        by_layer_type = {} if layer_type is None else {"layer_type": layer_type}
        num_blocks = -(-self._num_positions // self.BLOCK_SIZE)
        positions = torch.arange(num_blocks * self.BLOCK_SIZE, device=x.device)
        positions = positions.view(num_blocks, 1, -1)
        blocks = [self._forward(x, block, **by_layer_type) for block in positions]
        cos = torch.cat([block[0][0] for block in blocks])
        sin = torch.cat([block[1][0] for block in blocks])
        return cos, sin


def _aligned_width(num_threads: int) -> int:
    """Rows of a multiple of this width never split within a vector run, whoever helps."""
    return VECTOR_RUN * math.lcm(*range(1, num_threads + 1))
