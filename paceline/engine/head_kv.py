"""What an EAGLE head keeps of a sequence: keys and values, and outputs to feed drafts with.

Rows of true features come first, then rows of drafts, in the order in which they were run. Knows
nothing about what the head computes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_FIRST_ROOM = 256
"""Rows that a new sequence has room for; the room doubles as it grows."""


class HeadKV:
    """The keys and values of one sequence in the head: of rows at `start` and those behind."""

    def __init__(self, start: int) -> None:
        self.start = start
        """Position of the first row."""
        self.num_rows = 0
        self.num_drafts = 0
        """How many of the rows, the last ones, are of drafts."""
        self._storage: Tensor | None = None
        self._outputs: Tensor | None = None

    @property
    def end(self) -> int:
        """Position behind the last row, if all rows were one text."""
        return self.start + self.num_rows

    def truncate(self, num_rows: int) -> None:
        """Forget all but the first rows, which are of true features; without any, their room is
        free."""
        self.num_rows, self.num_drafts = num_rows, 0
        if num_rows == 0:
            self._storage = None

    def append(self, key_value: Tensor, are_drafts: bool) -> Tensor:
        """Add rows `[2, num_kv_heads, n, head_dim]`; returns all, `[2, num_kv_heads, N, …]`."""
        num_new = key_value.shape[2]
        end = self.num_rows + num_new
        room = 0 if self._storage is None else self._storage.shape[2]
        if end > room:
            shape = list(key_value.shape)
            shape[2] = max(_FIRST_ROOM, 2 * room, end)
            grown = key_value.new_empty(shape)
            if self._storage is not None:
                grown[:, :, : self.num_rows] = self._storage[:, :, : self.num_rows]
            self._storage = grown
        assert self._storage is not None
        self._storage[:, :, self.num_rows : end] = key_value
        self.num_rows = end
        self.num_drafts += num_new if are_drafts else 0
        return self._storage[:, :, :end]

    def add_outputs(self, outputs: Tensor) -> None:
        """What the layer made of the last row of true features `[1, hidden_size]`, or then of rows
        of drafts."""
        if self.num_drafts == 0:
            self._outputs = outputs.clone()
        else:
            assert self._outputs is not None
            self._outputs = torch.cat((self._outputs, outputs))

    def outputs_behind(self, ways: Sequence[Sequence[int]]) -> Tensor:
        """`[len(ways), hidden_size]`: of the last draft on each way, or of the last true row."""
        assert self._outputs is not None, "no row has been run"
        places = torch.tensor([way[-1] + 1 if way else 0 for way in ways])
        return self._outputs[places.to(self._outputs.device)]
