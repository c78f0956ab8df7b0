"""FlashAttention over blocks where they are (`torch.nn.attention.varlen`), and where it runs.

A tile is a sequence of 16 queries in a batch of varying lengths. `num_splits=1` keeps the sum over
the keys in one order, whatever the batch; one number for the longest keys keeps the choice of
kernel out of the batch's hands (a window that reaches over the longest keys runs as none). Keys are
walked in steps that begin at multiples of a fixed size; a step in which a query sees nothing adds
nothing.

This has not run on a card yet. What the CPU tests show is that the tables, lengths and windows that
go into the call mean what `varlen_attn` documents; whether rows then have equal bits is measured on
the card when the kernel is chosen.
"""

import logging

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from paceline.engine.attention import TiledAttention
from paceline.engine.attention_shape import AttentionShape
from paceline.engine.paged.kernels import (
    GatheredKernel,
    PagedKernel,
    WaveAttention,
    blocks_of,
)
from paceline.engine.paged.storage import PAGE_SIZE
from paceline.engine.paged.waves import TILE_SIZE

_log = logging.getLogger(__name__)

MAX_HEAD_DIM = 256
HEAD_DIM_STEP = 8
LEAST_CAPABILITY = (8, 0)
TOLERANCE = 0.1
"""Of results of some 0.1 to 4, in half precision: several times what rounding does to them."""


class VarlenKernel:
    """FlashAttention with block tables; `varlen_fault` says where it does not run."""

    has_exact_rows = True

    def __init__(self, max_length: int, has_key_bounds: bool = True) -> None:
        self.name = "FlashAttention with block tables (torch.nn.attention.varlen)"
        self._num_blocks = blocks_of(max_length)
        self._has_key_bounds = has_key_bounds

    def table_width(self, num_blocks: int) -> int:
        """That of the longest text: only blocks that hold keys are read."""
        return self._num_blocks

    def bind(self, tables: Tensor, num_keys: Tensor) -> WaveAttention:
        """Make ready for a wave of such tiles."""
        return _VarlenWave(tables, num_keys, self._has_key_bounds)


class _VarlenWave:
    def __init__(self, tables: Tensor, num_keys: Tensor, has_key_bounds: bool) -> None:
        num_tiles, num_blocks = tables.shape
        self._tables = tables
        self._num_keys = num_keys
        # `[T + 1]` each, where the queries and keys of a tile would begin, stood they in one row.
        self._query_bounds = torch.arange(
            0, (num_tiles + 1) * TILE_SIZE, TILE_SIZE, dtype=torch.int32, device=tables.device
        )
        self._key_bounds: Tensor | None = None
        if has_key_bounds:
            self._key_bounds = torch.zeros_like(self._query_bounds)
            self._key_bounds[1:] = num_keys.cumsum(0)
        self._max_keys = num_blocks * PAGE_SIZE

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """See `WaveAttention`."""
        result = varlen_attn(
            query,
            keys,
            values,
            self._query_bounds,
            self._key_bounds,
            TILE_SIZE,
            self._max_keys,
            scale=scaling,
            # To the left of the last query's key and to the right, both ends aligned.
            window_size=(-1, 0) if window is None else (window - 1, 0),
            enable_gqa=True,
            seqused_k=self._num_keys,
            block_table=self._tables,
            num_splits=1,
        )
        assert isinstance(result, Tensor), "no auxiliary results are asked for"
        return result.flatten(1)


def choose_kernel(
    shape: AttentionShape, dtype: torch.dtype, device: torch.device, max_length: int
) -> PagedKernel:
    """The kernel for a model on a device, which the log says."""
    if device.type == "cpu":
        return GatheredKernel(shape, max_length, TiledAttention(shape, dtype, max_length))
    fault = varlen_fault(shape, dtype, device)
    # FlashAttention 2 wants the bounds of the keys and does not look at them; 3 refuses them.
    for has_key_bounds in () if fault else (True, False):
        flash = VarlenKernel(max_length, has_key_bounds)
        try:
            flash.has_exact_rows = has_exact_rows(flash, shape, dtype, device, max_length)
            is_right = agrees(flash, shape, dtype, device)
        except RuntimeError as error:
            fault = f"FlashAttention failed in a trial: {error}"
            continue
        if is_right:
            return _said(flash, device, "")
        fault = "FlashAttention does not say what plain attention does"
    gathering = GatheredKernel(shape, max_length, None)
    gathering.has_exact_rows = has_exact_rows(gathering, shape, dtype, device, max_length)
    return _said(gathering, device, f", since {fault}")


def _said(kernel: PagedKernel, device: torch.device, reason: str) -> PagedKernel:
    bits = "the same bits however it is computed" if kernel.has_exact_rows else "bits that vary"
    _log.info("Attention on %s: %s%s. A row has %s.", device, kernel.name, reason, bits)
    return kernel


def varlen_fault(shape: AttentionShape, dtype: torch.dtype, device: torch.device) -> str:
    """Why FlashAttention does not run on a card, without a full stop; empty when it does."""
    if dtype not in (torch.float16, torch.bfloat16):
        return f"FlashAttention takes float16 and bfloat16, not {dtype}"
    if shape.head_dim > MAX_HEAD_DIM or shape.head_dim % HEAD_DIM_STEP:
        return (
            f"FlashAttention takes heads of a multiple of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}, "
            f"not of {shape.head_dim}"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        found, least = (".".join(map(str, pair)) for pair in (capability, LEAST_CAPABILITY))
        return f"FlashAttention takes compute capability {least}, and the card has {found}"
    return ""


@torch.inference_mode()
def agrees(
    kernel: PagedKernel, shape: AttentionShape, dtype: torch.dtype, device: torch.device
) -> bool:
    """Whether a kernel says what scaled-dot-product attention does, but for rounding.

    Over blocks that lie about, with a window and without: what a library takes tables and lengths
    for is nothing to rely on unseen, since wrong answers are text like any other.
    """
    generator = torch.Generator().manual_seed(0)
    order, unused = [2, 0, 1], 3
    num_blocks = min(len(order), kernel.table_width(len(order)))
    starts = [s for s in (0, 9, 250, 511, 700) if s + TILE_SIZE <= num_blocks * PAGE_SIZE]
    num_keys = torch.tensor(starts, dtype=torch.int32, device=device) + TILE_SIZE
    heads = (shape.num_kv_heads, shape.head_dim)
    keys, values = (
        torch.randn(unused + 1, PAGE_SIZE, *heads, generator=generator).to(device, dtype)
        for _ in range(2)
    )
    num_queries = len(starts) * TILE_SIZE
    query = torch.randn(num_queries, shape.num_heads, shape.head_dim, generator=generator)

    def attend(by: PagedKernel, window: int | None) -> Tensor:
        table = (order + [unused] * by.table_width(num_blocks))[: by.table_width(num_blocks)]
        tables = torch.tensor([table] * len(starts), dtype=torch.int32, device=device)
        wave = by.bind(tables, num_keys)
        return wave.attend(query.to(device, dtype), keys, values, shape.head_dim**-0.5, window)

    plain = GatheredKernel(shape, num_blocks * PAGE_SIZE - TILE_SIZE, None)
    return all(
        torch.allclose(attend(kernel, window), attend(plain, window), rtol=0.0, atol=TOLERANCE)
        for window in (None, 10)
    )


@torch.inference_mode()
def has_exact_rows(
    kernel: PagedKernel,
    shape: AttentionShape,
    dtype: torch.dtype,
    device: torch.device,
    max_length: int,
) -> bool:
    """Whether a query has the same bits at every place of a tile, and whatever else attends."""
    generator = torch.Generator().manual_seed(0)
    heads = (shape.num_kv_heads, shape.head_dim)
    length = max(2 * TILE_SIZE, min(max_length, 2 * PAGE_SIZE + 3 * TILE_SIZE))
    num_blocks = blocks_of(length)
    keys, values = (
        torch.randn(num_blocks + 1, PAGE_SIZE, *heads, generator=generator).to(device, dtype)
        for _ in range(2)
    )
    query = torch.randn(length + TILE_SIZE, shape.num_heads, shape.head_dim, generator=generator)
    query = query.to(device, dtype)
    width = kernel.table_width(num_blocks)
    table = [*range(num_blocks), *[num_blocks] * (width - num_blocks)]

    def attend(starts: list[int], window: int | None) -> Tensor:
        tables = torch.tensor([table] * len(starts), dtype=torch.int32, device=device)
        num_keys = torch.tensor(starts, dtype=torch.int32, device=device) + TILE_SIZE
        rows = torch.cat([query[start : start + TILE_SIZE] for start in starts])
        scaling = shape.head_dim**-0.5
        found: Tensor = kernel.bind(tables, num_keys).attend(rows, keys, values, scaling, window)
        return found.view(len(starts), TILE_SIZE, -1)

    starts = [*range(0, length - TILE_SIZE + 1, TILE_SIZE)]
    for window in (None, PAGE_SIZE + 1):
        expected = attend(starts, window).flatten(0, 1)
        for first in (*range(TILE_SIZE), *range(PAGE_SIZE - TILE_SIZE, PAGE_SIZE + TILE_SIZE)):
            if first + TILE_SIZE <= len(expected):
                (found,) = attend([first], window)
                if not torch.equal(found, expected[first : first + TILE_SIZE]):
                    return False
    return True
