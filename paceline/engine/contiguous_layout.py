"""Runs planned passes over contiguous KV: the layout for CPUs.

All sequences' tokens of a pass are concatenated, whatever their number, and run through the layers
once; only attention looks at one sequence after the other. Knows nothing about sequences' tokens
and about the layers of a model.
"""

import torch
from torch import Tensor

from paceline.engine.attention import AttentionPass, SequenceRows, TiledAttention, TreeRows
from paceline.engine.kv_layout import Decoder
from paceline.engine.kv_storage import SequenceStorage, TorchStorage
from paceline.engine.pass_plan import PassPlan

MIN_ROWS = 4
"""Fewer rows run with copies of the last one: a single row would get other bits from some kernels,
and the packed linear layers take longer for two rows than for four to six."""


class ContiguousLayout:
    """The KV of one model in one tensor per sequence, and its passes."""

    def __init__(
        self, decoder: Decoder, storage: TorchStorage, attention: TiledAttention, max_length: int
    ) -> None:
        self._decoder = decoder
        self.storage = storage
        """Makes what the passes' keys and values are kept in."""
        self._attention = attention
        self._max_length = max_length

    def run(self, plan: PassPlan[SequenceStorage]) -> tuple[Tensor, Tensor]:
        """See `KVLayout`."""
        sequences = [self._rows(*planned) for planned in plan.sequences]
        trees = [
            TreeRows(slice(tree.first_row, tree.first_row + tree.num_rows), tree.storage.key_value)
            for tree in plan.trees
        ]
        logits, features = self._decoder.run(
            torch.tensor(_filled(plan.token_ids)),
            torch.tensor(_filled(plan.positions)),
            torch.tensor(_filled(plan.wanted_rows), dtype=torch.long),
            AttentionPass(self._attention, sequences, trees),
        )
        return logits[: len(plan.wanted_rows)], features

    def _rows(
        self, storage: SequenceStorage, first_row: int, position: int, num_rows: int
    ) -> SequenceRows:
        room = min(len(storage.features), self._max_length)
        assert position + num_rows <= room, "the caller has reserved the room"
        return SequenceRows(self._attention, storage.key_value, first_row, position, num_rows)


def _filled(rows: list[int]) -> list[int]:
    """The rows, with copies of the last one up to `MIN_ROWS`; none stay none."""
    return rows + rows[-1:] * (MIN_ROWS - len(rows))
