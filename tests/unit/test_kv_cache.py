"""The pool of cells against a plain model of it: what is found is right, and never too much."""

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paceline.engine.kv_cache import BLOCK_SIZE, KVCache, KVSequence

CELL_SIZE = 8
NUM_CELLS = 12

TEXT = [token_id for token_id in range(3) for _ in range(BLOCK_SIZE)]


class ListStorage:
    """Storage that holds the token ids themselves; what was never written is -1."""

    cell_size = CELL_SIZE

    def allocate(self, num_cells: int) -> list[int]:
        return [-1] * (num_cells * CELL_SIZE)

    def grow(self, storage: list[int], num_cells: int) -> list[int]:
        return storage + [-1] * (num_cells * CELL_SIZE - len(storage))

    def copy_prefix(self, source: list[int], target: list[int], num_tokens: int) -> None:
        target[:num_tokens] = source[:num_tokens]

    def copy_path(
        self, tree: list[int], path: Sequence[int], target: list[int], num_tokens: int
    ) -> None:
        target[num_tokens : num_tokens + len(path)] = [tree[index] for index in path]


Cache = KVCache[list[int]]
KV = KVSequence[list[int]]


def new_cache(num_cells: int = NUM_CELLS) -> Cache:
    return KVCache(ListStorage(), num_cells)


def computed(cache: Cache, token_ids: list[int], salt: str = "") -> KV:
    """A running sequence whose tokens are all computed and offered for reuse."""
    kv = cache.open(token_ids, salt)
    assert cache.reserve(kv, len(token_ids))
    compute(kv, token_ids)
    cache.register(kv, token_ids)
    return kv


def compute(kv: KV, token_ids: list[int]) -> None:
    kv.storage[kv.num_tokens : len(token_ids)] = token_ids[kv.num_tokens :]
    kv.num_tokens = len(token_ids)


def hit(cache: Cache, token_ids: list[int], salt: str = "") -> int:
    """How many tokens would be found; leaves the cache as it was, but for what is least recent."""
    kv = cache.open(token_ids, salt)
    num_tokens = kv.num_tokens
    cache.register(kv, token_ids)
    cache.release(kv)
    return num_tokens


def test_what_is_looked_up_found_and_forgotten_is_counted() -> None:
    cache = new_cache(num_cells=len(TEXT) // CELL_SIZE)
    cache.release(computed(cache, TEXT))
    assert (cache.num_queried_tokens, cache.num_hit_tokens) == (len(TEXT), 0)
    assert cache.num_retained == len(TEXT)
    cache.release(cache.open([*TEXT, 9], salt=""))
    assert (cache.num_queried_tokens, cache.num_hit_tokens) == (2 * len(TEXT) + 1, len(TEXT))
    assert cache.num_evictions == 0
    assert cache.reserve(cache.open([7] * 20, salt=""), len(TEXT))
    assert (cache.num_evictions, cache.num_retained) == (1, 0)


def test_a_running_sequence_is_found_and_copied() -> None:
    cache = new_cache()
    first = computed(cache, TEXT)
    second = cache.open([*TEXT, 9], salt="")
    assert second is not first
    assert second.num_tokens == len(TEXT)
    assert second.storage[: len(TEXT)] == TEXT
    second.storage[0] = 7
    assert first.storage[0] == TEXT[0]


def test_the_last_token_is_always_left_to_compute() -> None:
    cache = new_cache()
    computed(cache, TEXT)
    assert hit(cache, TEXT) == len(TEXT) - BLOCK_SIZE


def test_a_released_sequence_is_taken_over_without_a_copy() -> None:
    cache = new_cache()
    first = computed(cache, TEXT)
    cache.release(first)
    assert cache.num_used == 0
    assert cache.open([*TEXT, 9], salt="") is first
    assert cache.num_used == len(TEXT)


def test_only_full_blocks_that_were_computed_are_found() -> None:
    cache = new_cache()
    computed(cache, TEXT[: BLOCK_SIZE + 5])
    assert hit(cache, [*TEXT, 9]) == BLOCK_SIZE


def test_the_beginning_must_be_equal_not_only_the_block() -> None:
    cache = new_cache()
    computed(cache, TEXT)
    assert hit(cache, [8, *TEXT[1:], 9]) == 0


def test_tenants_do_not_find_each_others_content() -> None:
    cache = new_cache()
    computed(cache, TEXT, salt="a")
    assert hit(cache, [*TEXT, 9], salt="b") == 0
    assert hit(cache, [*TEXT, 9], salt="") == 0
    assert hit(cache, [*TEXT, 9], salt="a") == len(TEXT)


def test_what_is_truncated_is_not_found_any_more() -> None:
    cache = new_cache()
    kv = computed(cache, TEXT)
    cache.truncate(kv, 2 * BLOCK_SIZE - 1)
    assert hit(cache, [*TEXT, 9]) == BLOCK_SIZE
    compute(kv, [*TEXT[: 2 * BLOCK_SIZE - 1], *range(20, 60)])
    cache.register(kv, list(kv.storage))
    assert hit(cache, [*TEXT, 9]) == BLOCK_SIZE


def test_the_least_recently_used_content_goes_first() -> None:
    cache = new_cache(num_cells=8)
    texts = [[tenth] * BLOCK_SIZE for tenth in range(3)]
    for text in texts:
        cache.release(computed(cache, text))
    assert hit(cache, [*texts[0], 9]) == BLOCK_SIZE  # now the most recently used
    assert cache.reserve(cache.open([5], salt=""), 4 * CELL_SIZE)
    found = [hit(cache, [*text, 9]) for text in texts]
    assert found == [BLOCK_SIZE, 0, BLOCK_SIZE]


def test_released_content_never_stands_in_the_way_of_room() -> None:
    cache = new_cache()
    cache.release(computed(cache, TEXT))
    assert cache.reserve(cache.open([5], salt=""), cache.capacity)


def test_a_reservation_that_does_not_fit_changes_nothing() -> None:
    cache = new_cache()
    computed(cache, TEXT)
    cache.release(computed(cache, [7] * BLOCK_SIZE))
    kv = cache.open([5], salt="")
    used = cache.num_used
    assert not cache.reserve(kv, cache.capacity)
    assert cache.num_used == used
    assert hit(cache, [*[7] * BLOCK_SIZE, 9]) == BLOCK_SIZE


@pytest.mark.parametrize("num_tokens", [0, 1, CELL_SIZE, CELL_SIZE + 1])
def test_room_is_taken_in_whole_cells(num_tokens: int) -> None:
    cache = new_cache()
    kv = cache.open([1], salt="")
    assert cache.reserve(kv, num_tokens)
    assert cache.num_used == len(kv.storage) == -(-num_tokens // CELL_SIZE) * CELL_SIZE


class CacheMachine(RuleBasedStateMachine):
    """Sequences that begin, grow, roll back and end, in a pool that is too small for all."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = new_cache()
        self.running: list[tuple[KV, list[int], str]] = []
        self.seen: set[tuple[str, tuple[int, ...]]] = set()

    @rule(
        blocks=st.lists(st.integers(0, 2), max_size=3),
        rest=st.lists(st.integers(0, 2), min_size=1, max_size=BLOCK_SIZE),
        salt=st.sampled_from(["", "a"]),
    )
    def begin(self, blocks: list[int], rest: list[int], salt: str) -> None:
        self.open([block for block in blocks for _ in range(BLOCK_SIZE)] + rest, salt)

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def begin_as_another_did(self, data: st.DataObject) -> None:
        salt, token_ids = data.draw(st.sampled_from(sorted(self.seen)))
        self.open([*token_ids, 1], salt)

    def open(self, token_ids: list[int], salt: str) -> None:
        kv = self.cache.open(token_ids, salt)
        assert kv.num_tokens < len(token_ids)
        assert kv.num_tokens % BLOCK_SIZE == 0
        assert kv.storage[: kv.num_tokens] == token_ids[: kv.num_tokens]
        found = tuple(token_ids[: kv.num_tokens])
        assert not found or (salt, found) in self.seen
        self.running.append((kv, token_ids, salt))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=st.lists(st.integers(0, 2), max_size=BLOCK_SIZE))
    def run(self, data: st.DataObject, more: list[int]) -> None:
        kv, token_ids, salt = data.draw(st.sampled_from(self.running))
        if not self.cache.reserve(kv, len(token_ids) + len(more)):
            return
        token_ids += more
        self.compute_all(kv, token_ids, salt)

    def compute_all(self, kv: KV, token_ids: list[int], salt: str) -> None:
        if not self.cache.reserve(kv, len(token_ids)):
            return
        compute(kv, token_ids)
        self.cache.register(kv, token_ids)
        for end in range(BLOCK_SIZE, len(token_ids) + 1, BLOCK_SIZE):
            self.seen.add((salt, tuple(token_ids[:end])))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), wrong=st.lists(st.just(9), max_size=5))
    def reject_drafts(self, data: st.DataObject, wrong: list[int]) -> None:
        """Tokens are computed that turn out not to belong to the sequence."""
        kv, token_ids, _ = data.draw(st.sampled_from(self.running))
        if self.cache.reserve(kv, kv.num_tokens + len(wrong)):
            kept = kv.num_tokens
            compute(kv, [*token_ids[:kept], *wrong])
            self.cache.truncate(kv, kept)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def roll_back_and_go_on(self, data: st.DataObject) -> None:
        kv, token_ids, salt = data.draw(st.sampled_from(self.running))
        length = data.draw(st.integers(1, len(token_ids)))
        self.cache.truncate(kv, length - 1)
        token_ids[length:] = [data.draw(st.integers(0, 2))] * (len(token_ids) - length)
        self.compute_all(kv, token_ids, salt)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.running) - 1))
        kv, _, _ = self.running.pop(index)
        self.cache.release(kv)

    @invariant()
    def running_sequences_share_nothing_and_fit(self) -> None:
        kvs = [kv for kv, _, _ in self.running]
        assert len({id(kv.storage) for kv in kvs}) == len(kvs)
        assert self.cache.num_used == sum(len(kv.storage) for kv in kvs) <= self.cache.capacity

    @invariant()
    def nobodys_tokens_have_changed(self) -> None:
        for kv, token_ids, _ in self.running:
            assert kv.storage[: kv.num_tokens] == token_ids[: kv.num_tokens]

    @invariant()
    def what_is_kept_of_the_ended_ones_fits_too(self) -> None:
        retained = self.cache._retained.values()
        room = self.cache.capacity - self.cache.num_used
        assert sum(len(kv.storage) for kv in retained) <= room

    def teardown(self) -> None:
        for kv, _, _ in self.running:
            self.cache.release(kv)
        assert self.cache.num_used == 0


TestPool = CacheMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
