"""Runs a planned pass through the layers of a model from transformers.

All sequences' tokens of a pass run through the layers once, and logits are computed for the rows
that are asked for. How the KV lies in memory, and so how rows attend to it, is a layout's. Knows
nothing about sequences' tokens, about the KV cache, and about where a model came from.

Invariant: `LanguageModel`'s, a row of logits has the same bits however it was computed. It holds on
the thread count that the model was loaded with, which is checked in every pass.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.engine.attention import TiledAttention
from paceline.engine.attention_shape import AttentionShape
from paceline.engine.contiguous_layout import ContiguousLayout
from paceline.engine.device import CPU, Device
from paceline.engine.fused_decoder import FusedDecoder, can_fuse
from paceline.engine.hf_decoder import HFDecoder, check_attention
from paceline.engine.kv_layout import Decoder, KVLayout
from paceline.engine.kv_storage import TorchStorage
from paceline.engine.linear import LinearFactory
from paceline.engine.module_linears import Share, WholeLinears
from paceline.engine.paged.layout import PagedLayout
from paceline.engine.paged.storage import PAGE_SIZE, PagedStorage
from paceline.engine.paged.varlen import choose_kernel
from paceline.engine.pass_plan import PassPlan


class PassRunner:
    """Owns `model` from here on: its weights are repacked in place.

    The hidden states of `feature_layers` come out with the logits. Without `share` this process
    runs the whole model. Where a device pages the KV, its pool has room for `pool_tokens`. Raises
    `InvalidConfig`, naming the feature, for a model that cannot be run exactly.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        max_model_len: int,
        use_packed_linears: bool = True,
        feature_layers: Sequence[int] = (),
        device: Device = CPU,
        share: Share | None = None,
        pool_tokens: int = 0,
    ) -> None:
        self._num_threads = torch.get_num_threads()
        shape = AttentionShape.of(model.config) if share is None else share.shape(model.config)
        model.requires_grad_(False).eval()
        if share is not None:
            share.let_shapes_fit()
        windows = check_attention(model, shape)
        factory = LinearFactory(model.dtype, use_packed_linears, device)
        linears = WholeLinears(factory) if share is None else share.linears(factory)
        decoder: Decoder = (
            FusedDecoder(model, linears, shape, windows, max_model_len, feature_layers)
            if can_fuse(model)
            else HFDecoder(model, linears, max_model_len, feature_layers)
        )
        self.has_exact_rows = not factory.varying_shapes
        """Whether the rows of all parts are exact; on a CPU other parts are refused."""
        feature_size = len(feature_layers) * model.config.hidden_size
        self._layout: KVLayout
        if device.pages_kv:
            kernel = choose_kernel(shape, model.dtype, device.torch_device, max_model_len)
            self.has_exact_rows &= kernel.has_exact_rows
            num_blocks = -(-pool_tokens // PAGE_SIZE)
            self._layout = PagedLayout(
                decoder,
                PagedStorage(shape, model.dtype, num_blocks, feature_size, device.torch_device),
                kernel,
                row_block=device.linear_rows,
                # Ranks wait for one another on the host.
                captures=share is None,
            )
        else:
            self._layout = ContiguousLayout(
                decoder,
                TorchStorage(shape, model.dtype, feature_size),
                TiledAttention(shape, model.dtype, max_model_len),
                max_model_len,
            )

    @property
    def storage(self) -> Any:
        """Makes what the passes' keys and values are kept in."""
        return self._layout.storage

    @torch.inference_mode()
    def run(self, plan: PassPlan[Any]) -> tuple[Tensor, Tensor]:
        """Write the keys and values of all rows.

        Return the logits `[R, V]` of those that are wanted, and the features
        `[at least N, feature_size]`.
        """
        if torch.get_num_threads() != self._num_threads:
            raise RuntimeError(
                f"The model was loaded for {self._num_threads} threads and is run with "
                f"{torch.get_num_threads()}; its results would have other bits."
            )
        return self._layout.run(plan)
