"""The choice of tokens as graphs: hundreds of small operations become one launch.

A graph has one number of rows, of a few, and one way to choose (`Stages`); what is missing is
filled up. It is captured when it first occurs; where that fails, tokens are chosen without. Knows
nothing about sequences.

Dimensions: R rows, V vocabulary.
"""

import logging
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.engine.device_sampling import RowParameters, Stages, choose_tokens
from paceline.engine.paged.graphs import CudaGraph, EagerGraph, PassGraph, Results, has_room

_log = logging.getLogger(__name__)

WIDTHS = (1, 4, 16, 32)
MAX_ROWS = WIDTHS[-1]
"""So many take some 300 MB for a vocabulary of 128,000 tokens, which all graphs share."""


class _Kind(NamedTuple):
    """What a graph fixes."""

    stages: Stages
    num_rows: int
    vocab_size: int
    dtype: torch.dtype


class _Graph(NamedTuple):
    rows: Tensor  # [R, V]
    graph: PassGraph


class CapturedChoice:
    """The graphs of one model."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: dict[_Kind, _Graph] = {}
        self._can_capture = True
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    @torch.inference_mode()
    def choose(
        self,
        logits: Tensor,  # [N, V]
        rows: Tensor,  # [R], those to choose by, on the device; R is at most `MAX_ROWS`
        parameters: Tensor,  # [R, fields of `RowParameters`], on the host
        stages: Stages,
    ) -> Tensor:
        """Token ids and confidences [R, 2], as `choose_tokens` says them."""
        num_rows = len(rows)
        width = next(width for width in WIDTHS if width >= num_rows)
        kind = _Kind(stages, width, logits.shape[1], logits.dtype)
        if not self._captures(kind):
            return choose_tokens(logits[rows], parameters.to(logits.device), stages)
        inputs, graph = self._graphs[kind]
        torch.index_select(logits, 0, rows, out=inputs[:num_rows])
        filled = torch.cat((parameters, parameters[:1].expand(width - num_rows, -1)))
        (answers,) = graph.replay(filled)
        return answers[:num_rows].clone()  # the next replay overwrites them

    def _captures(self, kind: _Kind) -> bool:
        """Whether there is a graph for this, as of now."""
        if kind not in self._graphs and self._can_capture and has_room(self._device):
            try:
                self._graphs[kind] = self._capture(kind)
            except RuntimeError:
                self._can_capture = False
                _log.exception("A choice of tokens could not be captured; it is slower without.")
        return kind in self._graphs

    def _capture(self, kind: _Kind) -> _Graph:
        rows = torch.zeros(kind.num_rows, kind.vocab_size, dtype=kind.dtype, device=self._device)

        def choose(parameters: Tensor) -> Results:
            return (choose_tokens(rows, parameters, kind.stages),)

        numbers = torch.ones(kind.num_rows, len(RowParameters._fields), dtype=torch.float64)
        if self._device.type == "cuda":
            return _Graph(rows, CudaGraph(choose, numbers, self._device, self._pool))
        return _Graph(rows, EagerGraph(choose, numbers, self._device))
