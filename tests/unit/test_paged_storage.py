"""Blocks of a pool: shared where equal, copied before they are written, and there when needed."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paceline.engine.attention_shape import AttentionShape
from paceline.engine.kv_cache import KVCache, KVSequence
from paceline.engine.paged.pool import BlockPool
from paceline.engine.paged.storage import PAGE_SIZE, PagedKV, PagedStorage

SHAPE = AttentionShape(num_layers=2, num_heads=2, num_kv_heads=2, head_dim=3)
NUM_CELLS = 5
KV = KVSequence[PagedKV]


def new_storage(num_cells: int = NUM_CELLS) -> PagedStorage:
    return PagedStorage(SHAPE, torch.float32, num_cells, feature_size=2)


def write(storage: PagedStorage, kv: KV, token_ids: Sequence[int]) -> None:
    """What a pass does: compute tokens behind those that are there."""
    start, end = kv.num_tokens, kv.num_tokens + len(token_ids)
    sequence: Any = kv.storage
    storage.make_writable(sequence, start, end)
    values = torch.tensor(token_ids, dtype=torch.float32)
    storage.slots[:, :, sequence.slots(start, end)] = values[:, None, None]
    sequence.keep_features(start, values[:, None].expand(-1, 2).half())
    kv.num_tokens = end


def content(storage: PagedStorage, kv: KV) -> list[int]:
    """The tokens that a sequence's keys, values and features say it has."""
    sequence: Any = kv.storage
    found = storage.slots[:, :, sequence.slots(0, kv.num_tokens)]
    token_ids = found[0, 0, :, 0, 0]
    assert torch.equal(found, token_ids[:, None, None].expand_as(found))
    assert torch.equal(sequence.feature_rows(0, kv.num_tokens)[:, 1].float(), token_ids)
    return [int(token_id) for token_id in token_ids]


def computed(cache: KVCache[PagedKV], storage: PagedStorage, token_ids: list[int]) -> KV:
    kv = cache.open(token_ids, salt="")
    assert cache.reserve(kv, len(token_ids))
    write(storage, kv, token_ids[kv.num_tokens :])
    cache.register(kv, token_ids)
    return kv


def blocks(kv: KV) -> list[int]:
    sequence: Any = kv.storage
    return sequence.blocks


def test_a_prefix_shares_full_blocks_and_copies_the_rest_of_the_last() -> None:
    storage = new_storage()
    cache = KVCache(storage, NUM_CELLS)
    text = [index % 7 for index in range(PAGE_SIZE + 40)]
    first = computed(cache, storage, text)
    second = computed(cache, storage, [*text[: PAGE_SIZE + 20], 9])
    assert blocks(first)[0] == blocks(second)[0] and blocks(first)[1] != blocks(second)[1]
    assert storage.pool.num_free == NUM_CELLS - 3
    assert content(storage, first) == text


def test_whoever_writes_into_a_shared_block_gets_one_of_its_own() -> None:
    storage = new_storage()
    cache = KVCache(storage, NUM_CELLS)
    text = [index % 7 for index in range(PAGE_SIZE + 40)]
    first = computed(cache, storage, text)
    second = computed(cache, storage, [*text, 9])
    cache.truncate(first, 100)
    write(storage, first, [8] * 30)
    assert content(storage, first) == [*text[:100], *[8] * 30]
    assert content(storage, second) == [*text, 9]
    assert blocks(first)[0] != blocks(second)[0]


def test_blocks_are_free_as_soon_as_the_cache_counts_them_so_whoever_still_has_the_sequence() -> (
    None
):
    storage = new_storage()
    cache = KVCache(storage, NUM_CELLS)
    unregistered = cache.open([1], salt="")
    assert cache.reserve(unregistered, 3 * PAGE_SIZE)
    cache.release(unregistered)
    assert storage.pool.num_free == NUM_CELLS
    retained = computed(cache, storage, [3] * 2 * PAGE_SIZE)
    cache.release(retained)
    assert storage.pool.num_free == NUM_CELLS - 2
    everything = cache.open([5], salt="")
    assert cache.reserve(everything, NUM_CELLS * PAGE_SIZE)
    assert storage.pool.num_free == 0


def test_a_path_of_a_tree_goes_behind_the_sequence_over_the_border_of_a_block() -> None:
    storage = new_storage()
    cache = KVCache(storage, NUM_CELLS)
    text = [index % 7 for index in range(PAGE_SIZE - 1)]
    kv = computed(cache, storage, text)
    assert cache.reserve(kv, PAGE_SIZE + 4)
    tree: Any = storage.allocate_tokens(4)
    values = torch.tensor([11.0, 12.0, 13.0, 14.0])
    tree.key_value.copy_(values[:, None, None, None])
    tree.keep_features(0, values[:, None].expand(-1, 2).half())
    kv.tree = tree
    cache.keep_path(kv, [0, 2, 3])
    assert content(storage, kv) == [*text, 11, 13, 14]


def test_a_pool_tells_when_more_is_asked_of_it_than_it_has() -> None:
    pool = BlockPool(2)
    taken = pool.take(2)
    with pytest.raises(AssertionError):
        pool.take(1)
    pool.share(taken)
    pool.release(taken)
    assert pool.num_free == 0
    pool.release(taken)
    assert pool.num_free == 2
    with pytest.raises(AssertionError):
        pool.release(taken)


class PagedMachine(RuleBasedStateMachine):
    """Sequences of few different texts, in a pool that is too small for all."""

    def __init__(self) -> None:
        super().__init__()
        self.storage = new_storage()
        self.cache = KVCache(self.storage, NUM_CELLS)
        self.running: list[tuple[KV, list[int]]] = []
        self.ended: list[KV] = []

    @rule(text=st.integers(0, 1), length=st.sampled_from([1, 40, 255, 256, 257, 520, 700]))
    def begin(self, text: int, length: int) -> None:
        token_ids = [(text * index) % 5 for index in range(length)]
        kv = self.cache.open(token_ids, salt="")
        self.running.append((kv, token_ids[: kv.num_tokens]))
        self.compute(kv, self.running[-1][1], token_ids[kv.num_tokens :])

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=st.sampled_from([1, 16, 250]), token_id=st.integers(0, 4))
    def go_on(self, data: st.DataObject, more: int, token_id: int) -> None:
        kv, token_ids = data.draw(st.sampled_from(self.running))
        self.compute(kv, token_ids, [token_id] * more)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        kv, token_ids = data.draw(st.sampled_from(self.running))
        length = data.draw(st.sampled_from([0, 1, 100, 255, 256, 300, 511, 512]))
        self.cache.truncate(kv, length)
        del token_ids[length:]

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        kv, _ = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.cache.release(kv)
        self.ended.append(kv)  # somebody may still look at it

    def compute(self, kv: KV, token_ids: list[int], more: list[int]) -> None:
        if self.cache.reserve(kv, len(token_ids) + len(more)):
            write(self.storage, kv, more)
            token_ids += more
            self.cache.register(kv, token_ids)

    @invariant()
    def nobodys_tokens_have_changed(self) -> None:
        for kv, token_ids in self.running:
            assert content(self.storage, kv) == token_ids

    @invariant()
    def the_pool_holds_no_more_than_the_cache_counts(self) -> None:
        counted = (self.cache.num_used + self.cache.num_retained) // PAGE_SIZE
        held = NUM_CELLS - self.storage.pool.num_free
        assert held <= counted <= NUM_CELLS
        kept = [kv for kv, _ in self.running] + [*self.cache._retained.values()]
        assert held == len({block for kv in kept for block in blocks(kv)})

    @invariant()
    def nobody_writes_into_scratch_or_the_dummy(self) -> None:
        assert not self.storage.blocks[:, :, NUM_CELLS:].any()


TestPool = PagedMachine.TestCase
TestPool.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
