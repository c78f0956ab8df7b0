"""Tiles, lanes and waves by their arithmetic alone: what stands before each query is its text."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import as_tree, trees

from paceline.engine.attention_shape import AttentionShape
from paceline.engine.kv_cache import KVCache
from paceline.engine.model import PassSequence
from paceline.engine.paged.numbers import Widths, pack, padding, unpack
from paceline.engine.paged.storage import PAGE_SIZE, PagedKV, PagedStorage
from paceline.engine.paged.waves import TILE_SIZE, plan_waves
from paceline.engine.pass_plan import PassPlan, plan_pass
from paceline.rounds import Drafts
from paceline.token_tree import depth_first

SHAPE = AttentionShape(num_layers=1, num_heads=1, num_kv_heads=1, head_dim=1)
NUM_CELLS = 12
Parts = list[tuple[int, int, Drafts]]  # cached tokens, tokens of the stem, tree


class Batch:
    """Sequences in a pool, in which every slot says which token of which way stands there."""

    def __init__(self, parts: Parts, num_scratch: int) -> None:
        self.storage = PagedStorage(SHAPE, torch.float32, NUM_CELLS, num_scratch=num_scratch)
        cache: KVCache[PagedKV] = KVCache(self.storage, NUM_CELLS)
        self.slots: dict[int, tuple[int, ...]] = {}
        self.ways: list[tuple[int, ...]] = []
        """Of each row of the pass the tokens up to its own, all different."""
        batch = []
        for number, (num_cached, num_stem, tree) in enumerate(parts):
            parents = depth_first(tree).parents if tree.token_ids else ()
            kv = cache.open([1], salt="")
            assert cache.reserve(kv, num_cached + num_stem + len(parents) + 1)
            kv.num_tokens = num_cached
            text = tuple(range(number * 10000, number * 10000 + num_cached + num_stem))
            sequence: Any = kv.storage
            for position, slot in enumerate(sequence.slots(0, num_cached)):
                self.slots[slot] = text[: position + 1]
            self.ways += [text[: num_cached + index + 1] for index in range(num_stem)]
            first = len(self.ways)
            for index, parent in enumerate(parents):
                before = text if parent < 0 else self.ways[first + parent]
                self.ways.append((*before, number * 10000 + 9000 + index))
            token_ids = [0] * (num_stem + len(parents))
            batch.append(PassSequence(kv, token_ids, 1 + len(parents), parents))
        self.plan: PassPlan[PagedKV] = plan_pass(batch, self.storage)
        self.paged = plan_waves(self.plan, self.storage)

    def check(self) -> None:
        """Do what a layer does, and look at what each query would see."""
        for source, target, num_tokens in self.paged.copies:
            assert target in self.storage.scratch
            for place in range(num_tokens):
                self.slots[target * PAGE_SIZE + place] = self.slots[source * PAGE_SIZE + place]
        seen: list[int] = []
        for wave in self.paged.waves:
            assert len(set(wave.slots)) == len(wave.slots), "two rows in one place"
            for row, slot in zip(wave.written_rows, wave.slots, strict=True):
                self.slots[slot] = self.ways[row]
            for tile in wave.tiles:
                assert 0 < len(tile.rows) <= TILE_SIZE
                for offset, row in enumerate(tile.rows):
                    way = self.ways[row]
                    assert len(way) == tile.position + offset + 1 == tile.num_keys - 15 + offset
                    for position in range(len(way)):
                        block = tile.blocks[position // PAGE_SIZE]
                        found = self.slots[block * PAGE_SIZE + position % PAGE_SIZE]
                        assert found == way[: position + 1]
                seen += tile.rows
        assert sorted(seen) == [*range(len(self.ways))]


NO_TREE = Drafts(())
places = st.sampled_from([0, 1, 15, 200, 240, 253, 255, 256, 257, 500, 511, 512])
tree = trees(st.integers(0, 3), 12).map(as_tree)
parts = st.tuples(places, st.integers(1, 20), tree | st.just(NO_TREE))


@settings(max_examples=25)
@given(parts=st.lists(parts, min_size=1, max_size=3), num_scratch=st.integers(0, 30))
def test_every_query_sees_its_own_way_whatever_scratch_there_is(
    parts: Parts, num_scratch: int
) -> None:
    Batch(parts, num_scratch).check()


BUSH = Drafts((0, 1, 2, 3), (-1, -1, -1, -1))


def test_with_scratch_for_all_branches_there_is_one_wave() -> None:
    assert len(Batch([(100, 1, BUSH), (300, 2, BUSH)], 6).paged.waves) == 1
    assert len(Batch([(100, 1, BUSH), (300, 2, BUSH)], 5).paged.waves) == 2
    assert len(Batch([(100, 1, BUSH)], 0).paged.waves) == 4
    # A tree over the border of two blocks takes twice as much.
    chain = Drafts((0, 1, 2, 3), (-1, -1, 1, 2))
    assert len(Batch([(PAGE_SIZE - 2, 1, chain)], 2).paged.waves) == 1
    assert len(Batch([(PAGE_SIZE - 2, 1, chain)], 1).paged.waves) == 2


def test_the_numbers_of_a_pass_say_what_its_plan_says_and_the_rest_is_harmless() -> None:
    batch = Batch([(100, 20, NO_TREE), (300, 1, BUSH), (511, 1, NO_TREE)], 9)
    widths = Widths(32, 16, 2, 40, 9, 4, True)
    dummy = batch.storage.dummy
    numbers = unpack(pack(batch.plan, batch.paged, widths, dummy), widths)
    num_rows = len(batch.ways)
    assert numbers.positions.tolist() == [*batch.plan.positions, *[0] * (32 - num_rows)]
    assert numbers.wanted_rows.tolist()[:7] == batch.plan.wanted_rows
    wave, empty = numbers.waves
    queries = torch.cat([wave.tile_rows, empty.tile_rows])
    assert queries[numbers.places[:num_rows]].tolist() == [*range(num_rows)]
    planned = batch.paged.waves[0]
    assert wave.slots.tolist()[: len(planned.slots)] == planned.slots
    assert set(wave.slots.tolist()[len(planned.slots) :]) <= {dummy * PAGE_SIZE}
    for index, tile in enumerate(planned.tiles):
        assert wave.num_keys[index] == tile.position + TILE_SIZE
        num_seen = -(-int(wave.num_keys[index]) // PAGE_SIZE)
        expected = [*tile.blocks[:num_seen], *[dummy] * 4]
        assert wave.tables[index].tolist() == expected[:4]
    assert empty.tables.unique().tolist() == [dummy]
    assert empty.num_keys.unique().tolist() == [TILE_SIZE]
    nothing = unpack(padding(widths, dummy), widths)
    assert [part.shape for part in nothing.waves[0]] == [part.shape for part in wave]
    assert nothing.waves[0].slots.unique().tolist() == [dummy * PAGE_SIZE]
