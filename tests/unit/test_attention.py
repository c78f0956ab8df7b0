"""A row of attention has the same bits for any width, place, neighbour and number of keys."""

from collections.abc import Sequence
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paceline.engine.attention import (
    TILE_QUERIES,
    AttentionPass,
    SequenceRows,
    TiledAttention,
)
from paceline.engine.attention_shape import AttentionShape
from paceline.engine.kv_storage import CELL_SIZE

pytestmark = pytest.mark.usefixtures("several_threads")

MAX_LENGTH = 1200
SHAPES = (
    AttentionShape(num_layers=1, num_heads=9, num_kv_heads=3, head_dim=64),
    AttentionShape(num_layers=1, num_heads=4, num_kv_heads=4, head_dim=16),
    AttentionShape(num_layers=1, num_heads=14, num_kv_heads=2, head_dim=32),
    AttentionShape(num_layers=1, num_heads=40, num_kv_heads=1, head_dim=8),
)


class Text:
    """Queries, keys and values of a sequence, for one layer."""

    def __init__(self, shape: AttentionShape, dtype: torch.dtype, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.shape = shape
        self.query = torch.randn(MAX_LENGTH, shape.num_heads, shape.head_dim).to(dtype)
        self.key_value = torch.randn(MAX_LENGTH, 2, shape.num_kv_heads, shape.head_dim).to(dtype)

    def storage(self, num_cells: int = 3) -> Tensor:
        room = num_cells * CELL_SIZE
        return torch.zeros(
            (1, 2, self.shape.num_kv_heads, room, self.shape.head_dim), dtype=self.query.dtype
        )


@cache
def tiled(shape: AttentionShape, dtype: torch.dtype) -> TiledAttention:
    return TiledAttention(shape, dtype, MAX_LENGTH)


def attend(
    attention: TiledAttention,
    parts: Sequence[tuple[Text, Tensor, int, int]],  # text, storage, position, rows
    window: int | None = None,
    num_padding: int = 0,
) -> Tensor:
    sequences = []
    first_row = 0
    for _, storage, position, num_rows in parts:
        sequences.append(SequenceRows(attention, storage, first_row, position, num_rows))
        first_row += num_rows
    query = torch.cat([text.query[p : p + n] for text, _, p, n in parts])
    key_value = torch.cat([text.key_value[p : p + n] for text, _, p, n in parts])
    if num_padding:
        query = torch.cat((query, query[:num_padding]))
        key_value = torch.cat((key_value, key_value[:num_padding]))
    scaling = attention.shape.head_dim**-0.5
    return AttentionPass(attention, sequences).attend(0, query, key_value, scaling, window)


def expected(text: Text, window: int | None) -> Tensor:
    """Plain attention of the whole text, in double precision."""
    group = text.shape.group
    query = text.query.double().transpose(0, 1)
    key, value = text.key_value.double().permute(1, 2, 0, 3).repeat_interleave(group, dim=1)
    distance = torch.arange(MAX_LENGTH)[:, None] - torch.arange(MAX_LENGTH)
    is_seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    rows = functional.scaled_dot_product_attention(query, key, value, attn_mask=is_seen)
    return rows.transpose(0, 1).flatten(1)


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_agrees_with_plain_attention_in_double_precision(
    shape: AttentionShape, window: int | None
) -> None:
    text = Text(shape, torch.float32)
    attention = tiled(shape, torch.float32)
    rows = attend(attention, [(text, text.storage(), 0, MAX_LENGTH)], window)
    torch.testing.assert_close(rows.double(), expected(text, window), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_width_gives_a_row_the_same_bits(
    shape: AttentionShape, window: int | None, dtype: torch.dtype
) -> None:
    text = Text(shape, dtype)
    attention = tiled(shape, dtype)
    storage = text.storage()
    rows = attend(attention, [(text, storage, 0, MAX_LENGTH)], window)
    for width in (1, 2, 3, 5, 8, 15, 16, 17, 33):
        for position in (0, 1, 77, CELL_SIZE - 5, CELL_SIZE - 1, CELL_SIZE, 1100):
            again = attend(attention, [(text, storage, position, width)], window)
            assert torch.equal(again, rows[position : position + width])


def test_further_cells_of_storage_and_what_was_dropped_change_nothing() -> None:
    text, other = Text(SHAPES[0], torch.float32), Text(SHAPES[0], torch.float32, seed=1)
    attention = tiled(SHAPES[0], torch.float32)
    rows = attend(attention, [(text, text.storage(num_cells=1), 0, 200)])
    used = text.storage(num_cells=3)
    attend(attention, [(other, used, 0, MAX_LENGTH)])
    assert torch.equal(attend(attention, [(text, used, 0, 200)]), rows)


def test_sequences_of_one_pass_do_not_see_one_another() -> None:
    texts = [Text(SHAPES[0], torch.float32, seed) for seed in range(4)]
    attention = tiled(SHAPES[0], torch.float32)
    storages = [text.storage() for text in texts]
    alone = [
        attend(attention, [(text, storage, 0, 700)])
        for text, storage in zip(texts, storages, strict=True)
    ]
    places = ((600, 1), (505, 8), (0, 512), (690, 3))
    parts = [
        (text, storage, position, num_rows)
        for text, storage, (position, num_rows) in zip(texts, storages, places, strict=True)
    ]
    together = attend(attention, parts).split([num_rows for _, num_rows in places])
    for rows, own, (position, num_rows) in zip(together, alone, places, strict=True):
        assert torch.equal(rows, own[position : position + num_rows])


def test_rows_behind_the_last_sequence_get_zeros() -> None:
    text = Text(SHAPES[0], torch.float32)
    attention = tiled(SHAPES[0], torch.float32)
    rows = attend(attention, [(text, text.storage(), 0, 1)], num_padding=1)
    assert rows[0].any() and not rows[1].any()


def test_few_queries_run_in_a_tile_of_their_own_number() -> None:
    attention = tiled(SHAPES[0], torch.float32)
    assert [attention.tile(n) for n in (1, 2, 10, 11, 300)] == [2, 2, 10, *[TILE_QUERIES] * 2]
