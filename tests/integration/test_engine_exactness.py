"""A row of logits has the same bits, however it was computed: the engine's one promise.

Small random models here; `tests/e2e/test_engine_exactness_default_model.py` has a real one.
"""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import torch
from engine_runs import extend, fresh_rows, same_bits, text
from families import VOCAB_SIZE, family_model
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.engine.model import Logits, PassSequence
from paceline.engine.transformer import TransformerModel

pytestmark = pytest.mark.usefixtures("several_threads")

LENGTH = 563
TEXT = text(LENGTH, VOCAB_SIZE)
KINDS = {
    "fused": ("llama", torch.float32, True),
    "fused_without_packed_linears": ("llama", torch.float32, False),
    "sliding_window_and_bfloat16": ("mistral", torch.bfloat16, True),
    "head_norms": ("qwen3", torch.float32, True),
    "as_transformers_computes_it": ("gemma3_text", torch.float32, True),
    "as_transformers_computes_it_without_packed_linears": ("phi3", torch.bfloat16, False),
}


@cache
def model_of(kind: str) -> TransformerModel:
    model_type, dtype, use_packed_linears = KINDS[kind]
    module = family_model(model_type, dtype)
    return TransformerModel(module, VOCAB_SIZE, 1024, 16 * 1024, use_packed_linears)


@pytest.fixture(params=list(KINDS))
def model(request: pytest.FixtureRequest) -> Iterator[TransformerModel]:
    model = model_of(request.param)
    yield model
    assert model.kv_cache.num_used == 0


@cache
def rows_of(model: TransformerModel) -> Logits:
    """The rows of `TEXT`, which every other way to compute them must equal."""
    return fresh_rows(model, TEXT)


@pytest.mark.parametrize("chunk", [16, 64])
def test_prefill_in_chunks(model: TransformerModel, chunk: int) -> None:
    assert same_bits(fresh_rows(model, TEXT, chunk), rows_of(model))


def test_widths_from_one_to_sixteen_at_any_place_and_over_the_border_of_a_cell(
    model: TransformerModel,
) -> None:
    kv = model.kv_cache.open(TEXT[:1], salt="")
    extend(model, kv, TEXT)
    for position, widths in ((300, range(1, 17)), (505, (1, 2, 5, 8, 16)), (511, (1, 2, 3, 9))):
        for width in widths:
            model.kv_cache.truncate(kv, position)
            rows = extend(model, kv, TEXT[position : position + width])
            assert same_bits(rows, rows_of(model)[position : position + width])
        extend(model, kv, TEXT[kv.num_tokens :])
    model.kv_cache.release(kv)


def test_a_rejected_continuation_leaves_no_trace(model: TransformerModel) -> None:
    kv = model.kv_cache.open(TEXT[:1], salt="")
    extend(model, kv, TEXT[:508])
    extend(model, kv, text(9, VOCAB_SIZE, seed=1))
    model.kv_cache.truncate(kv, 508)
    assert same_bits(extend(model, kv, TEXT[508:515]), rows_of(model)[508:515])
    model.kv_cache.release(kv)


def test_a_prefix_found_in_the_cache_is_as_good_as_computed(model: TransformerModel) -> None:
    first = model.kv_cache.open(TEXT[:1], salt="warm")
    extend(model, first, TEXT)
    model.kv_cache.register(first, TEXT)
    copied = model.kv_cache.open(TEXT, salt="warm")
    assert copied is not first and copied.num_tokens == 560
    model.kv_cache.truncate(copied, 510)
    assert same_bits(extend(model, copied, TEXT[510:520]), rows_of(model)[510:520])
    model.kv_cache.release(copied)
    model.kv_cache.release(first)
    taken_over = model.kv_cache.open(TEXT, salt="warm")
    assert taken_over.num_tokens > 0
    start = taken_over.num_tokens
    assert same_bits(extend(model, taken_over, TEXT[start:]), rows_of(model)[start:])
    model.kv_cache.release(taken_over)


def test_sixteen_sequences_of_all_widths_with_a_long_chunk_among_them(
    model: TransformerModel,
) -> None:
    widths = [1, 1, 2, 3, 5, 8, 16, 1, 1, 4, 9, 512, 1, 7, 2, 1]
    starts = [0, 17, 511, 300, 509, 540, 40, 512, 1, 99, 250, 48, 559, 506, 10, 444]
    kvs = [model.kv_cache.open(TEXT[:1], salt="") for _ in widths]
    for kv, start, width in zip(kvs, starts, widths, strict=True):
        if start:
            extend(model, kv, TEXT[:start])
        assert model.kv_cache.reserve(kv, start + width)
    batch = [
        PassSequence(kv, TEXT[start : start + width], min(width, 20))
        for kv, start, width in zip(kvs, starts, widths, strict=True)
    ]
    results = model.forward(batch)
    for rows, kv, start, width in zip(results, kvs, starts, widths, strict=True):
        end = start + width
        assert kv.num_tokens == end
        assert same_bits(rows, rows_of(model)[end - len(rows) : end])
        model.kv_cache.release(kv)


def test_rows_do_not_depend_on_which_logits_are_wanted(model: TransformerModel) -> None:
    kv = model.kv_cache.open(TEXT[:1], salt="")
    assert model.kv_cache.reserve(kv, 100)
    for num_logits in (0, 1, 2, 100):
        model.kv_cache.truncate(kv, 0)
        (rows,) = model.forward([PassSequence(kv, TEXT[:100], num_logits)])
        assert rows.shape == (num_logits, VOCAB_SIZE)
        assert same_bits(rows, rows_of(model)[100 - num_logits : 100])
    model.kv_cache.release(kv)


@settings(max_examples=10)
@given(data=st.data())
def test_any_history_of_any_batch_gives_the_same_rows(data: st.DataObject) -> None:
    model = model_of("fused")
    kvs = [model.kv_cache.open(TEXT[:1], salt="") for _ in range(3)]
    for _ in range(data.draw(st.integers(1, 6))):
        batch = []
        for kv in data.draw(st.permutations(kvs)):
            model.kv_cache.truncate(kv, data.draw(st.integers(0, kv.num_tokens)))
            longest = min(LENGTH - kv.num_tokens, data.draw(st.sampled_from([1, 4, 16, 550])))
            width = data.draw(st.integers(0, longest))
            if width:
                assert model.kv_cache.reserve(kv, kv.num_tokens + width)
                part = TEXT[kv.num_tokens : kv.num_tokens + width]
                batch.append(PassSequence(kv, part, data.draw(st.integers(0, width))))
        for part, rows in zip(batch, model.forward(batch) if batch else (), strict=True):
            end = part.kv.num_tokens
            assert same_bits(rows, rows_of(model)[end - part.num_logits : end])
    for kv in kvs:
        model.kv_cache.release(kv)


def test_results_are_not_overwritten_by_later_passes() -> None:
    model = model_of("fused")
    rows = fresh_rows(model, TEXT[:20])
    kept = rows.copy()
    fresh_rows(model, text(20, VOCAB_SIZE, seed=2))
    assert same_bits(rows, kept) and np.isfinite(rows).all()


def test_a_pass_on_another_number_of_threads_is_refused() -> None:
    model = model_of("fused")
    num_threads = torch.get_num_threads()
    torch.set_num_threads(num_threads + 1)
    try:
        with pytest.raises(RuntimeError, match=f"loaded for {num_threads} threads"):
            fresh_rows(model, TEXT[:4])
    finally:
        torch.set_num_threads(num_threads)
    model.kv_cache.release(model.kv_cache.open(TEXT[:1], salt=""))
