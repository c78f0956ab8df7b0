"""Runs a planned pass through the layers of a model from transformers.

All sequences' tokens of a pass are concatenated, whatever their number, and run through the layers
once; only attention looks at one sequence after the other. Logits are computed for the rows that
are asked for. Knows nothing about sequences' tokens, about the KV cache, and about where a model
came from.

Invariant: `LanguageModel`'s, a row of logits has the same bits however it was computed. It holds on
the thread count that the model was loaded with, which is checked in every pass.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.engine.attention import AttentionPass, SequenceRows, TiledAttention, TreeRows
from paceline.engine.attention_shape import AttentionShape
from paceline.engine.device import CPU, Device
from paceline.engine.fused_decoder import FusedDecoder, can_fuse
from paceline.engine.hf_decoder import HFDecoder, check_attention
from paceline.engine.kv_storage import SequenceStorage, TorchStorage
from paceline.engine.linear import LinearFactory
from paceline.engine.module_linears import Share, WholeLinears
from paceline.engine.pass_plan import PassPlan

MIN_ROWS = 4
"""Fewer rows run with copies of the last one: a single row would get other bits from some kernels,
and the packed linear layers take longer for two rows than for four to six."""


class PassRunner:
    """Owns `model` from here on: its weights are repacked in place.

    The hidden states of `feature_layers` come out with the logits. Without `share` this process
    runs the whole model. Raises `InvalidConfig`, naming the feature, for a model that cannot be run
    exactly.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        max_model_len: int,
        use_packed_linears: bool = True,
        feature_layers: Sequence[int] = (),
        device: Device = CPU,
        share: Share | None = None,
    ) -> None:
        self._num_threads = torch.get_num_threads()
        self._max_model_len = max_model_len
        shape = AttentionShape.of(model.config) if share is None else share.shape(model.config)
        model.requires_grad_(False).eval()
        if share is not None:
            share.let_shapes_fit()
        windows = check_attention(model, shape)
        self._attention = TiledAttention(shape, model.dtype, max_model_len)
        factory = LinearFactory(model.dtype, use_packed_linears, device)
        linears = WholeLinears(factory) if share is None else share.linears(factory)
        self._decoder = (
            FusedDecoder(model, linears, shape, windows, max_model_len, feature_layers)
            if can_fuse(model)
            else HFDecoder(model, linears, max_model_len, feature_layers)
        )
        self.has_exact_linears = not factory.varying_shapes
        """Whether the rows of all linear layers are exact; on a CPU others are refused."""
        self.storage = TorchStorage(
            shape, model.dtype, len(feature_layers) * model.config.hidden_size
        )
        """Makes what the passes' keys and values are kept in."""

    @torch.inference_mode()
    def run(self, plan: PassPlan[SequenceStorage]) -> tuple[Tensor, Tensor]:
        """Write the keys and values of all rows.

        Return the logits `[R, V]` of those that are wanted, and the features
        `[at least N, feature_size]`.
        """
        if torch.get_num_threads() != self._num_threads:
            raise RuntimeError(
                f"The model was loaded for {self._num_threads} threads and is run with "
                f"{torch.get_num_threads()}; its results would have other bits."
            )
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
        room = min(len(storage.features), self._max_model_len)
        assert position + num_rows <= room, "the caller has reserved the room"
        return SequenceRows(self._attention, storage.key_value, first_row, position, num_rows)


def _filled(rows: list[int]) -> list[int]:
    """The rows, with copies of the last one up to `MIN_ROWS`; none stay none."""
    return rows + rows[-1:] * (MIN_ROWS - len(rows))
