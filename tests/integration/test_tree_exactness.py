"""Rows, KV and features of a tree have the bits that plain decoding of each path gives."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from checked_trees import BROAD, check_tree
from families import FAMILIES, VOCAB_SIZE, family_model
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import trees

from paceline.engine.kv_cache import KVCache, KVSequence
from paceline.engine.model import LanguageModel, PassSequence
from paceline.engine.table_model import TableLaw, TableModel
from paceline.engine.transformer import TransformerModel
from paceline.rounds import Drafts
from paceline.token_tree import Branch

pytestmark = pytest.mark.usefixtures("several_threads")

KINDS = {
    "fused": ("llama", torch.float32, True),
    "fused_without_packed_linears": ("llama", torch.float32, False),
    "sliding_window_and_bfloat16": ("mistral", torch.bfloat16, True),
    "head_norms_and_bfloat16": ("qwen3", torch.bfloat16, True),
    "as_transformers_computes_it": ("gemma3_text", torch.float32, True),
    "as_transformers_computes_it_without_packed_linears": ("phi3", torch.bfloat16, False),
}
LAYERS = (0, 2, 3)


@cache
def model_of(kind: str) -> LanguageModel:
    if kind == "table":
        return TableModel(TableLaw(3, VOCAB_SIZE), max_model_len=1024)
    return transformer(*KINDS[kind])


def transformer(model_type: str, dtype: torch.dtype, is_packed: bool) -> TransformerModel:
    module = family_model(model_type, dtype)
    return TransformerModel(module, VOCAB_SIZE, 1024, 16 * 1024, is_packed, feature_layers=LAYERS)


@pytest.mark.parametrize("kind", [*KINDS, "table"])
@pytest.mark.parametrize("start", [3, 507, 511])
def test_a_broad_tree_at_any_place_and_over_the_border_of_a_cell(kind: str, start: int) -> None:
    for kept in (8, 12, 15):
        check_tree(model_of(kind), start, 2, BROAD, kept, Drafts((7, 8, 9), (-1, -1, 0)))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str) -> None:
    model = transformer(family, torch.float32, True)
    check_tree(model, 60, 1, BROAD, 10, Drafts((7, 8), (-1, -1)))


@pytest.mark.parametrize("kind", ["fused", "sliding_window_and_bfloat16", "table"])
@settings(max_examples=12, deadline=None)
@given(
    tree=trees(st.integers(0, VOCAB_SIZE - 1), 16),
    mate=trees(st.integers(0, 3), 8),
    start=st.sampled_from([0, 1, 40, 500, 509]),
    num_stem=st.integers(1, 5),
    kept=st.integers(0, 15),
)
def test_any_tree_beside_any_other(
    kind: str, tree: Drafts, mate: Drafts, start: int, num_stem: int, kept: int
) -> None:
    kept = kept % len(tree.token_ids)
    check_tree(model_of(kind), start, num_stem, tree, kept, mate)


def is_exact() -> bool:
    try:
        check_tree(model_of("fused"), 40, 2, BROAD, 8, Drafts((7, 8), (-1, -1)))
    except AssertionError:
        return False
    return True


def keeps_the_last_branch(cache: KVCache[Any], kv: KVSequence[Any], path: Sequence[int]) -> None:
    kv.num_tokens += len(path)


def one_branch(part: PassSequence) -> list[Branch]:
    return [Branch(0, 0, len(part.token_ids))]


def all_behind_the_stem(part: PassSequence) -> list[Branch]:
    found = BRANCHES(part)
    return [found[0], *(Branch(first, part.num_stem, number) for first, _, number in found[1:])]


BRANCHES = PassSequence.branches


@pytest.mark.parametrize(
    ("place", "name", "mutant"),
    [
        (KVCache, "keep_path", keeps_the_last_branch),
        (PassSequence, "branches", one_branch),
        (PassSequence, "branches", all_behind_the_stem),
    ],
)
def test_what_is_computed_in_a_wrong_place_is_caught(
    monkeypatch: pytest.MonkeyPatch, place: type, name: str, mutant: Any
) -> None:
    assert is_exact()
    monkeypatch.setattr(place, name, mutant)
    assert not is_exact()
