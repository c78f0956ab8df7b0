"""Attention over blocks: each kernel means the same, and the CPU's has the contiguous bits."""

import logging
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from varlen_reference import VarlenReference

from paceline.engine.attention import SequenceRows, TiledAttention
from paceline.engine.attention_shape import AttentionShape
from paceline.engine.paged.kernels import GatheredKernel, PagedKernel, tiles_per_call
from paceline.engine.paged.storage import PAGE_SIZE
from paceline.engine.paged.varlen import (
    VarlenKernel,
    agrees,
    choose_kernel,
    has_exact_rows,
    varlen_fault,
)
from paceline.engine.paged.waves import TILE_SIZE

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)
MAX_LENGTH = 800
SHAPES = (AttentionShape(1, 6, 2, 16), AttentionShape(1, 4, 4, 8), AttentionShape(1, 5, 1, 8))
STARTS = (0, 3, 255, 300, 495, 496, 511, 600, 784)
BLOCKS = [5, 0, 3, 1]
DUMMY = 6


class Keys:
    """Keys and values of a text, contiguous and in blocks that lie about."""

    def __init__(self, shape: AttentionShape, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.query = torch.randn(MAX_LENGTH, shape.num_heads, shape.head_dim).to(dtype)
        heads = (shape.num_kv_heads, shape.head_dim)
        text = torch.randn(2, len(BLOCKS) * PAGE_SIZE, *heads).to(dtype)
        self.storage = text.transpose(1, 2)[None].contiguous()
        self.blocks = torch.full((2, DUMMY + 1, PAGE_SIZE, *heads), 7.0, dtype=dtype)
        self.blocks[:, BLOCKS] = text.unflatten(1, (len(BLOCKS), PAGE_SIZE))


def attend(
    kernel: PagedKernel, keys: Keys, scaling: float, window: int | None, starts: tuple[int, ...]
) -> torch.Tensor:
    """Rows `[tiles, TILE_SIZE, H * D]` of the tiles that begin there."""
    width = kernel.table_width(-(-(max(starts) + TILE_SIZE) // PAGE_SIZE))
    table = [*BLOCKS, *[DUMMY] * width][:width]
    tables = torch.tensor([table] * len(starts), dtype=torch.int32)
    num_keys = torch.tensor(starts, dtype=torch.int32) + TILE_SIZE
    query = torch.cat([keys.query[start : start + TILE_SIZE] for start in starts])
    wave = kernel.bind(tables, num_keys)
    return wave.attend(query, *keys.blocks, scaling, window).unflatten(0, (-1, TILE_SIZE))


@pytest.mark.parametrize("window", [None, 1, 40, 300])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_cpu_rows_have_the_bits_of_the_contiguous_layout(
    shape: AttentionShape, dtype: torch.dtype, window: int | None
) -> None:
    tiled, keys, scaling = TiledAttention(shape, dtype, MAX_LENGTH), Keys(shape, dtype), 0.3
    kernel = GatheredKernel(shape, MAX_LENGTH, tiled)
    found = attend(kernel, keys, scaling, window, STARTS)
    for start, rows in zip(STARTS, found, strict=True):
        for width in (1, 5, TILE_SIZE):
            at = SequenceRows(tiled, keys.storage, 0, start, width)
            query, mask = keys.query[start : start + width], at.mask(tiled, window)
            expected = tiled(query, at.keys[0], at.values[0], mask, scaling)
            assert torch.equal(rows[:width], expected)


@pytest.mark.parametrize("window", [None, 1, 40, 300, 5000])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_varlen_attn_documents_and_plain_attention_agree_with_it(
    monkeypatch: pytest.MonkeyPatch, shape: AttentionShape, window: int | None
) -> None:
    reference = VarlenReference()
    monkeypatch.setattr("paceline.engine.paged.varlen.varlen_attn", reference)
    keys = Keys(shape, torch.float32)
    tiled = TiledAttention(shape, torch.float32, MAX_LENGTH)
    expected = attend(GatheredKernel(shape, MAX_LENGTH, tiled), keys, 0.3, window, STARTS)
    flash = [VarlenKernel(MAX_LENGTH, has_bounds) for has_bounds in (True, False)]
    for kernel in (*flash, GatheredKernel(shape, MAX_LENGTH, None)):
        found = attend(kernel, keys, 0.3, window, STARTS)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert reference.num_calls == 2


def test_varlen_attn_takes_the_call_as_far_as_a_machine_without_cuda_can_tell() -> None:
    shape = AttentionShape(1, 6, 2, 16)
    kernel = VarlenKernel(MAX_LENGTH)
    with FakeTensorMode():
        tables = torch.zeros(3, kernel.table_width(1), dtype=torch.int32)
        wave = kernel.bind(tables, torch.zeros(3, dtype=torch.int32))
        query = torch.zeros(3 * TILE_SIZE, 6, 16, dtype=torch.bfloat16)
        blocks = torch.zeros(9, PAGE_SIZE, shape.num_kv_heads, 16, dtype=torch.bfloat16)
        assert wave.attend(query, blocks, blocks, 0.3, 40).shape == (3 * TILE_SIZE, 6 * 16)


def test_a_kernel_is_known_by_whether_its_rows_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = AttentionShape(1, 4, 2, 8)
    reference = VarlenReference()
    monkeypatch.setattr("paceline.engine.paged.varlen.varlen_attn", reference)
    kernel = VarlenKernel(MAX_LENGTH)
    assert has_exact_rows(kernel, shape, torch.bfloat16, CPU, MAX_LENGTH)
    assert has_exact_rows(VarlenKernel(8), shape, torch.bfloat16, CPU, 8)

    def by_place(query: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        return reference(query, *args, **kwargs) + torch.arange(len(query))[:, None, None] % 16

    monkeypatch.setattr("paceline.engine.paged.varlen.varlen_attn", by_place)
    assert not has_exact_rows(kernel, shape, torch.bfloat16, CPU, MAX_LENGTH)


@pytest.mark.parametrize("max_length", [40, 300, MAX_LENGTH])
def test_a_kernel_that_takes_tables_or_lengths_for_something_else_is_found_out(
    monkeypatch: pytest.MonkeyPatch, max_length: int
) -> None:
    shape = AttentionShape(1, 4, 2, 8)
    reference = VarlenReference()
    kernel = VarlenKernel(max_length)
    found = []
    for changed in (
        {},
        {"window_size": (-1, 0)},
        {"block_table": torch.zeros(5, kernel.table_width(3), dtype=torch.int32)},
    ):

        def attending(*args: object, changed: Any = changed, **kwargs: Any) -> torch.Tensor:
            table = kwargs["block_table"]
            return reference(*args, **kwargs | {k: v[: len(table)] for k, v in changed.items()})

        monkeypatch.setattr("paceline.engine.paged.varlen.varlen_attn", attending)
        found.append(agrees(kernel, shape, torch.bfloat16, CPU))
    assert found == [True, False, False]


@pytest.mark.parametrize(
    ("shape", "dtype", "capability", "fault"),
    [
        (AttentionShape(1, 8, 2, 128), torch.bfloat16, (9, 0), ""),
        (AttentionShape(1, 8, 2, 128), torch.float16, (8, 0), ""),
        (AttentionShape(1, 8, 2, 128), torch.float32, (9, 0), "not torch.float32"),
        (AttentionShape(1, 8, 2, 512), torch.bfloat16, (9, 0), "up to 256, not of 512"),
        (AttentionShape(1, 8, 2, 20), torch.bfloat16, (9, 0), "multiple of 8 up to 256, not of 20"),
        (AttentionShape(1, 8, 2, 128), torch.float16, (7, 5), "8.0, and the card has 7.5"),
    ],
)
def test_where_flash_attention_does_not_run_it_says_why(
    monkeypatch: pytest.MonkeyPatch,
    shape: AttentionShape,
    dtype: torch.dtype,
    capability: tuple[int, int],
    fault: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    found = varlen_fault(shape, dtype, CUDA)
    assert fault in found and bool(fault) == bool(found)


def test_the_log_says_which_kernel_a_card_gets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    shape = AttentionShape(1, 8, 2, 128)
    exact = "paceline.engine.paged.varlen.has_exact_rows"
    with caplog.at_level(logging.INFO, "paceline.engine.paged.varlen"):
        monkeypatch.setattr(exact, lambda *_: True)
        monkeypatch.setattr("paceline.engine.paged.varlen.agrees", lambda *_: True)
        chosen = choose_kernel(shape, torch.bfloat16, CUDA, MAX_LENGTH)
        assert isinstance(chosen, VarlenKernel) and chosen.has_exact_rows

        def fails(kernel: PagedKernel, *_: object) -> bool:
            if isinstance(kernel, VarlenKernel):
                raise RuntimeError("no kernel image")
            return False

        monkeypatch.setattr(exact, fails)
        chosen = choose_kernel(shape, torch.bfloat16, CUDA, MAX_LENGTH)
        assert isinstance(chosen, GatheredKernel) and not chosen.has_exact_rows
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("Attention on cuda:0: FlashAttention") and "the same bits" in first
    assert "no kernel image" in second and "bits that vary" in second


def test_keys_of_long_texts_are_gathered_a_few_tiles_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = SHAPES[0]
    keys = Keys(shape, torch.float32)
    kernel = GatheredKernel(shape, MAX_LENGTH, None)
    at_once = attend(kernel, keys, 0.25, 40, STARTS[:8])
    monkeypatch.setattr("paceline.engine.paged.kernels.GATHERED_BYTES", 2 * 1024 * 2 * 16 * 4)
    tables = torch.empty(8, kernel.table_width(4))
    assert tiles_per_call(shape, tables) == 2
    torch.testing.assert_close(attend(kernel, keys, 0.25, 40, STARTS[:8]), at_once)
    assert tiles_per_call(AttentionShape(32, 32, 8, 128), torch.empty(8, 512)) == 1
