"""Runs planned passes over paged KV, at a few fixed widths.

A pass is filled up to the next widths, so that it is one of a few computations, each of which is
captured when it first occurs: rows to a multiple of the rows of a linear layer, and up to the most
that are captured to a power of two of those. What is larger, or takes several waves for its trees,
runs by itself at widths of the same kind.

Knows nothing about sequences' tokens and about the layers of a model. Invariant: where the decoder
and the kernel are exact, a row's bits do not depend on what its pass was filled up to.
"""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.engine.kv_layout import Decoder
from paceline.engine.paged.attention import PagedAttention
from paceline.engine.paged.graphs import (
    CudaGraph,
    EagerGraph,
    Pass,
    PassGraph,
    Results,
    has_room,
)
from paceline.engine.paged.kernels import PagedKernel
from paceline.engine.paged.numbers import Widths, pack, padding, unpack
from paceline.engine.paged.storage import PAGE_SIZE, PagedKV, PagedStorage, PagedTree
from paceline.engine.paged.waves import TILE_SIZE, PagedPlan, plan_waves
from paceline.engine.pass_plan import PassPlan

_log = logging.getLogger(__name__)

MAX_CAPTURED_BLOCKS = 4
"""Blocks of rows of the largest pass that is captured: beyond, the launches of one pass cost little
beside its work."""
TILE_SHARES = (TILE_SIZE, 4, 1)
"""A pass of N rows is filled up to N / 16, N / 4 or N tiles: a prompt's tiles are full, and those
of sequences that decode hold a row each."""
TREE_WRITES = 4
"""A pass of N rows with trees writes each at most so many times on average; more run by itself."""


class PagedLayout:
    """The KV of one model in blocks, and its passes.

    `row_block` is the one number of rows at which linear layers run; `captures` says whether passes
    may be captured.
    """

    def __init__(
        self,
        decoder: Decoder,
        storage: PagedStorage,
        kernel: PagedKernel,
        row_block: int,
        captures: bool,
    ) -> None:
        self._decoder = decoder
        self.storage = storage
        """Makes what the passes' keys and values are kept in."""
        self._kernel = kernel
        self._row_block = row_block
        self._captures = captures
        self._device = storage.blocks.device
        self._graphs: dict[Widths, PassGraph] = {}
        self._graph_pool = torch.cuda.graph_pool_handle() if self._device.type == "cuda" else None

    @property
    def num_graphs(self) -> int:
        """Passes that have been captured."""
        return len(self._graphs)

    def run(self, plan: PassPlan[PagedKV]) -> tuple[Tensor, Tensor]:
        """See `KVLayout`."""
        paged = plan_waves(plan, self.storage)
        for copy in paged.copies:
            self.storage.copy_block(*copy)
        widths = self._widths(plan, paged)
        numbers = pack(plan, paged, widths, self.storage.dummy)
        graph = self._graph(widths)
        if graph is None:
            logits, features, *kept = self._pass_of(widths)(numbers.to(self._device))
        else:
            # The next replay overwrites the results.
            logits, features, *kept = (result.clone() for result in graph.replay(numbers))
        for tree in plan.trees:
            assert isinstance(tree.storage, PagedTree)
            rows = kept[0][:, tree.first_row : tree.first_row + tree.num_rows]
            tree.storage.key_value.copy_(rows)
        return logits[: len(plan.wanted_rows)], features

    def _graph(self, widths: Widths) -> PassGraph | None:
        """The captured pass of these widths; None where it runs by itself."""
        if not self._is_captured(widths):
            return None
        if widths not in self._graphs:
            if not has_room(self._device):
                return None
            try:
                self._graphs[widths] = self._capture(widths)
            except RuntimeError:
                self._captures = False
                _log.exception("A pass could not be captured; passes run without, which is slower.")
                return None
        return self._graphs[widths]

    def _capture(self, widths: Widths) -> PassGraph:
        function, nothing = self._pass_of(widths), padding(widths, self.storage.dummy)
        if self._device.type == "cuda":
            return CudaGraph(function, nothing, self._device, self._graph_pool)
        return EagerGraph(function, nothing, self._device)

    def _pass_of(self, widths: Widths) -> Pass:
        def run(packed: Tensor) -> Results:
            numbers = unpack(packed, widths)
            blocks = self.storage.blocks
            kept = None
            if widths.keeps_rows:
                num_layers, _, _, _, *heads = blocks.shape
                kept = blocks.new_empty((num_layers, widths.num_rows, 2, *heads))
            attention = PagedAttention(self._kernel, blocks, numbers, kept)
            results = self._decoder.run(
                numbers.token_ids, numbers.positions, numbers.wanted_rows, attention
            )
            return results if kept is None else (*results, kept)

        return run

    def _is_captured(self, widths: Widths) -> bool:
        most = MAX_CAPTURED_BLOCKS * self._row_block
        return (
            self._captures
            and widths.num_waves == 1
            and widths.num_rows <= most
            and widths.num_writes <= TREE_WRITES * widths.num_rows
        )

    def _widths(self, plan: PassPlan[PagedKV], paged: PagedPlan) -> Widths:
        num_rows = self._filled(len(plan.token_ids))
        num_wanted = len(plan.wanted_rows)
        if num_wanted:
            num_wanted = self._row_block if num_wanted <= self._row_block else num_rows
        tiles = [wave.tiles for wave in paged.waves]
        num_writes = max(len(wave.slots) for wave in paged.waves)
        most_keys = max(tile.num_keys for wave in tiles for tile in wave)
        return Widths(
            num_rows,
            num_wanted,
            num_waves=len(paged.waves),
            num_writes=_next(num_writes, (num_rows, TREE_WRITES * num_rows)),
            num_tiles=_next(max(map(len, tiles)), [num_rows // share for share in TILE_SHARES]),
            num_blocks=self._kernel.table_width(-(-most_keys // PAGE_SIZE)),
            keeps_rows=bool(plan.trees),
        )

    def _filled(self, num_rows: int) -> int:
        num_blocks = -(-num_rows // self._row_block)
        if num_blocks <= MAX_CAPTURED_BLOCKS:
            num_blocks = 1 << (num_blocks - 1).bit_length()
        return num_blocks * self._row_block


def _next(needed: int, widths: Sequence[int]) -> int:
    """The smallest of the widths that will do, or what is needed when none does."""
    return min((width for width in widths if width >= needed), default=needed)
