"""Whether a tree's rows, KV and features have the bits of plain decoding, for any model."""

import numpy as np
import torch
from engine_runs import extend, same_bits, text
from families import VOCAB_SIZE
from trees import indices, ways

from paceline.engine.kv_cache import KVSequence
from paceline.engine.kv_storage import SequenceStorage
from paceline.engine.model import LanguageModel, PassSequence
from paceline.engine.paged.storage import PagedSequence
from paceline.rounds import Drafts
from paceline.token_tree import depth_first

LENGTH = 530
TEXT = text(LENGTH, VOCAB_SIZE)
BROAD = Drafts(tuple(range(16)), (-1, -1, 0, 0, 1, 2, -1, 2, 3, 5, 5, 6, 7, 0, 9, 11))
"""Sixteen tokens in five levels."""


def opened(model: LanguageModel, num_tokens: int) -> KVSequence[object]:
    """A sequence with the first tokens of `TEXT` computed."""
    kv = model.kv_cache.open(TEXT[:1], salt="")
    if num_tokens:
        extend(model, kv, TEXT[:num_tokens])
    return kv


def content(model: LanguageModel, kv: KVSequence[object]) -> list[np.ndarray]:
    """All that is kept of the tokens of a sequence, in bits."""
    features = model.features(kv, 0, kv.num_tokens).view(np.uint16)
    if isinstance(kv.storage, SequenceStorage):
        key_value = kv.storage.key_value[:, :, :, : kv.num_tokens].contiguous()
        return [key_value.view(torch.uint8).numpy(), features]
    if isinstance(kv.storage, PagedSequence):
        slots = kv.storage.slots(0, kv.num_tokens)
        key_value = kv.storage._storage.slots[:, :, slots]
        return [key_value.view(torch.uint8).numpy(), features]
    return [kv.storage[: kv.num_tokens], features]


def check_tree(
    model: LanguageModel, start: int, num_stem: int, drafts: Drafts, kept: int, mate: Drafts
) -> None:
    """Run a tree behind `start` computed tokens and others, beside another tree and a chain."""
    tree, other = depth_first(drafts), depth_first(mate)
    base = start + num_stem
    kv, beside, chain = opened(model, start), opened(model, 7), opened(model, start)
    for one, room in (
        (kv, base + max(map(len, ways(tree)))),
        (beside, 9 + max(map(len, ways(other)))),
        (chain, base),
    ):
        assert model.kv_cache.reserve(one, room)
    batch = [
        PassSequence(
            beside, [*TEXT[7:9], *other.token_ids], 1 + len(other.token_ids), other.parents
        ),
        PassSequence(
            kv, [*TEXT[start:base], *tree.token_ids], 1 + len(tree.token_ids), tree.parents
        ),
        PassSequence(chain, TEXT[start:base], 1),
    ]
    _, rows, chain_rows = model.forward(batch)
    plain = opened(model, base - 1)
    assert same_bits(extend(model, plain, TEXT[base - 1 : base]), rows[:1])
    assert same_bits(rows[:1], chain_rows)
    for index, way in enumerate(ways(tree)):
        model.kv_cache.truncate(plain, base)
        expected = extend(model, plain, way, chunk=1)[-1:]
        assert same_bits(rows[1 + index : 2 + index], expected)
    if tree.parents:
        assert kv.num_tokens == base
        path = indices(tree.parents, kept)
        model.kv_cache.keep_path(kv, path)
        model.kv_cache.truncate(plain, base)
        extend(model, plain, [tree.token_ids[index] for index in path], chunk=1)
        assert kv.num_tokens == plain.num_tokens
        pairs = zip(content(model, kv), content(model, plain), strict=True)
        assert all(np.array_equal(found, expected) for found, expected in pairs)
    for one in (kv, beside, chain, plain):
        model.kv_cache.release(one)
