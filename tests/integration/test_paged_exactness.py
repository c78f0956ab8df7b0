"""Paged KV gives every row, key and feature the bits that contiguous KV gives it."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from engine_runs import extend, fresh_rows, same_bits, text
from families import VOCAB_SIZE, family_model
from hypothesis import given, settings
from hypothesis import strategies as st
from paging_cpu import PAGING_CPU
from trees import as_tree, indices, trees
from varlen_reference import VarlenReference

from paceline.engine.device import CPU
from paceline.engine.kv_cache import KVSequence
from paceline.engine.model import Logits, PassSequence
from paceline.engine.paged.layout import PagedLayout
from paceline.engine.paged.varlen import VarlenKernel
from paceline.engine.transformer import TransformerModel
from paceline.rounds import Drafts
from paceline.token_tree import depth_first, depths

LENGTH = 540
TEXT = text(LENGTH, VOCAB_SIZE)
LAYERS = (1, 3)
KINDS: dict[str, tuple[str, torch.dtype, dict[str, Any]]] = {
    "fused": ("llama", torch.float32, {}),
    "a_key_head_for_each": ("llama", torch.bfloat16, {"num_key_value_heads": 6}),
    "sliding_window_and_bfloat16": ("mistral", torch.bfloat16, {}),
    "head_norms": ("qwen3", torch.float32, {}),
    "as_transformers_computes_it": ("gemma3_text", torch.float32, {}),
}
BUSH = depth_first(Drafts(tuple(range(12)), (-1, -1, 0, 0, 1, 2, -1, 2, 3, 5, 5, 6)))


@cache
def model_of(kind: str, is_paged: bool, kv_cache_tokens: int = 8 * 1024) -> TransformerModel:
    model_type, dtype, config = KINDS[kind]
    module = family_model(model_type, dtype, **config)
    device = PAGING_CPU if is_paged else CPU
    return TransformerModel(
        module, VOCAB_SIZE, 1024, kv_cache_tokens, feature_layers=LAYERS, device=device
    )


@cache
def rows_of(kind: str) -> Logits:
    return fresh_rows(model_of(kind, False), TEXT)


def layout_of(model: TransformerModel) -> PagedLayout:
    layout = model._runner._layout
    assert isinstance(layout, PagedLayout)
    return layout


@pytest.mark.parametrize("kind", KINDS)
def test_prefill_in_chunks_and_widths_over_the_border_of_a_block(kind: str) -> None:
    model, rows = model_of(kind, True), rows_of(kind)
    assert model.numerics == model_of(kind, False).numerics
    kv = model.kv_cache.open(TEXT[:1], salt="")
    assert same_bits(extend(model, kv, TEXT, chunk=400), rows)
    for position, widths in ((511, (1, 2, 9)), (505, (2, 16)), (249, range(1, 17, 3))):
        for width in widths:
            model.kv_cache.truncate(kv, position)
            found = extend(model, kv, TEXT[position : position + width])
            assert same_bits(found, rows[position : position + width])
    model.kv_cache.release(kv)


@pytest.mark.parametrize("kind", KINDS)
def test_a_ragged_batch_with_a_prefix_that_is_shared_and_then_written_over(kind: str) -> None:
    model, rows = model_of(kind, True), rows_of(kind)
    holder = model.kv_cache.open(TEXT[:1], salt="shared")
    extend(model, holder, TEXT)
    model.kv_cache.register(holder, TEXT)
    kvs = [model.kv_cache.open(TEXT, salt="shared"), holder, model.kv_cache.open([1], salt="")]
    assert kvs[0].num_tokens == 528
    model.kv_cache.truncate(kvs[0], 513)
    # The block is shared, and what is written now is not what its other holder has there.
    model.kv_cache.truncate(holder, 200)
    extend(model, holder, text(20, VOCAB_SIZE, seed=1))
    model.kv_cache.truncate(holder, 200)
    widths = (5, 130, 40)
    for kv, width in zip(kvs, widths, strict=True):
        assert model.kv_cache.reserve(kv, kv.num_tokens + width)
    starts = [kv.num_tokens for kv in kvs]
    found = model.forward(
        [
            PassSequence(kv, TEXT[kv.num_tokens :][:width], min(width, 9))
            for kv, width in zip(kvs, widths, strict=True)
        ]
    )
    for kv, start, width, part in zip(kvs, starts, widths, found, strict=True):
        assert same_bits(part, rows[start + width - len(part) : start + width])
        features = model.features(kv, start, kv.num_tokens)
        assert np.array_equal(features, expected_features(kind, TEXT[: start + width])[start:])
        model.kv_cache.release(kv)


def expected_features(kind: str, token_ids: list[int]) -> np.ndarray:
    model = model_of(kind, False)
    kv = model.kv_cache.open(token_ids[:1], salt="")
    extend(model, kv, token_ids)
    features = model.features(kv, 0, len(token_ids)).copy()
    model.kv_cache.release(kv)
    return features


def tree_run(
    model: TransformerModel, start: int, tree: Drafts, kept: int
) -> tuple[list[Logits], list[KVSequence[Any]]]:
    """A tree twice, beside a chain; then one path of it, and a token behind that."""
    base = start + 2
    kvs = []
    for room in (base + max(depths(tree.parents)) + 1, base + max(depths(tree.parents)) + 1, base):
        kv = model.kv_cache.open(TEXT[:1], salt="")
        if start:
            extend(model, kv, TEXT[:start])
        assert model.kv_cache.reserve(kv, room)
        kvs.append(kv)
    token_ids = [*TEXT[start:base], *tree.token_ids]
    batch = [PassSequence(kv, token_ids, 1 + len(tree.parents), tree.parents) for kv in kvs[:2]]
    results = model.forward([batch[0], PassSequence(kvs[2], TEXT[start:base], 2), batch[1]])
    for kv in kvs[:2]:
        model.kv_cache.keep_path(kv, indices(tree.parents, kept))
        results += model.forward([PassSequence(kv, [7], 1)])
    return results, kvs


def check_tree(kind: str, start: int, tree: Drafts, kept: int, num_scratch: int) -> None:
    """Compare both layouts, the paged one with so many blocks of scratch."""
    paged, plain = model_of(kind, True), model_of(kind, False)
    storage = layout_of(paged).storage
    whole = storage.scratch
    storage.scratch = whole[:num_scratch]
    try:
        found, kvs = tree_run(paged, start, tree, kept)
    finally:
        storage.scratch = whole
    expected, plain_kvs = tree_run(plain, start, tree, kept)
    assert all(map(same_bits, found, expected))
    for kv, other in zip(kvs, plain_kvs, strict=True):
        num_tokens = kv.num_tokens
        assert num_tokens == other.num_tokens
        features = paged.features(kv, 0, num_tokens), plain.features(other, 0, num_tokens)
        assert np.array_equal(*features)
        key_value = storage.slots[:, :, kv.storage.slots(0, num_tokens)].transpose(2, 3)
        assert torch.equal(key_value, other.storage.key_value[:, :, :, :num_tokens])
        paged.kv_cache.release(kv)
        plain.kv_cache.release(other)


@pytest.mark.parametrize(
    ("kind", "start", "num_scratch"),
    [("fused", 60, 64), ("fused", 509, 0), *((kind, 252, 5) for kind in KINDS)],
)
def test_a_tree_in_one_wave_in_some_and_branch_by_branch(
    kind: str, start: int, num_scratch: int
) -> None:
    check_tree(kind, start, BUSH, 9, num_scratch)


@settings(max_examples=6)
@given(
    tree=trees(st.integers(0, VOCAB_SIZE - 1), 16).map(as_tree).map(depth_first).map(as_tree),
    start=st.sampled_from([1, 40, 250, 256]),
    kept=st.integers(0, 15),
    num_scratch=st.integers(0, 12),
)
def test_any_tree(tree: Drafts, start: int, kept: int, num_scratch: int) -> None:
    check_tree("fused", start, tree, kept % len(tree.token_ids), num_scratch)


def test_a_pool_that_is_full_of_ended_sequences_makes_room() -> None:
    model = model_of("fused", True, 4 * 256)
    for seed in range(4):
        own = text(300, VOCAB_SIZE, seed)
        kv = model.kv_cache.open(own, salt="")
        rows = extend(model, kv, own)
        model.kv_cache.register(kv, own)
        model.kv_cache.release(kv)
        assert same_bits(rows, fresh_rows(model_of("fused", False), own))
    assert model.kv_cache.num_evictions > 0


def test_passes_are_few_captured_ones_and_their_results_are_not_overwritten() -> None:
    model, rows = model_of("fused", True), rows_of("fused")
    kv = model.kv_cache.open(TEXT[:1], salt="")
    first = extend(model, kv, TEXT[:20])
    kept = first.copy()
    num_graphs = layout_of(model).num_graphs
    for _ in range(2):
        for width in (1, 2, 16):
            extend(model, kv, TEXT[kv.num_tokens : kv.num_tokens + width])
    assert 0 < layout_of(model).num_graphs <= num_graphs + 1
    assert same_bits(first, kept) and same_bits(kept, rows[:20])
    model.kv_cache.release(kv)


def test_a_layer_that_looks_at_a_number_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TransformerModel(family_model("llama"), VOCAB_SIZE, 1024, 1024, device=PAGING_CPU)
    layout = layout_of(model)
    run = layout._decoder.run

    def looks(token_ids: torch.Tensor, *rest: Any) -> Any:
        assert int(token_ids[0]) >= 0
        return run(token_ids, *rest)

    monkeypatch.setattr(layout._decoder, "run", looks)
    layout._graphs.clear()
    with pytest.raises(AssertionError, match="waits for a number"):
        fresh_rows(model, TEXT[:4])


def test_passes_that_cannot_be_captured_run_by_themselves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr("paceline.engine.paged.layout.EagerGraph", fails)
    model = TransformerModel(family_model("llama"), VOCAB_SIZE, 1024, 1024, device=PAGING_CPU)
    plain = TransformerModel(family_model("llama"), VOCAB_SIZE, 1024, 1024)
    assert same_bits(fresh_rows(model, TEXT[:20]), fresh_rows(plain, TEXT[:20]))
    (record,) = (record for record in caplog.records if "captured" in record.message)
    assert record.exc_text and "not permitted" in record.exc_text
    assert layout_of(model).num_graphs == 0


@pytest.mark.parametrize("kind", ["fused", "sliding_window_and_bfloat16"])
def test_a_model_over_what_varlen_attn_documents_says_the_same(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    reference = VarlenReference()
    monkeypatch.setattr("paceline.engine.paged.varlen.varlen_attn", reference)
    model_type, _, config = KINDS[kind]
    module = family_model(model_type, **config)
    plain = TransformerModel(family_model(model_type, **config), VOCAB_SIZE, 1024, 4096)
    monkeypatch.setattr("paceline.engine.pass_runner.choose_kernel", lambda *_: VarlenKernel(1024))
    # The reference looks at numbers, and FlashAttention is not compared bit for bit.
    monkeypatch.setattr("paceline.engine.paged.layout.MAX_CAPTURED_BLOCKS", 0)
    monkeypatch.setattr(TransformerModel, "_digest", lambda _: "")
    model = TransformerModel(module, VOCAB_SIZE, 1024, 4096, feature_layers=(1,), device=PAGING_CPU)
    found, _ = tree_run(model, 253, BUSH, 9)
    expected, _ = tree_run(plain, 253, BUSH, 9)
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-4)
    assert reference.num_calls > 0
