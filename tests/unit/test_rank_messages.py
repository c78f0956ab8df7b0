"""What rank 0 says arrives as it was meant, and storages everywhere become what they are there."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

from paceline.engine.attention_shape import AttentionShape
from paceline.engine.kv_cache import KVCache, KVSequence
from paceline.engine.kv_storage import SequenceStorage, TorchStorage
from paceline.engine.pass_plan import PassPlan, PlannedRows, PlannedTree
from paceline.engine.ranks.follower import Storages
from paceline.engine.ranks.leader import MirroredStorage
from paceline.engine.ranks.linears import split
from paceline.engine.ranks.messages import carry_out, decoded, encoded
from paceline.engine.ranks.sharding import distributed_config
from paceline.errors import InvalidConfig

NUMBERS = st.lists(st.integers(0, 2**31 - 1), max_size=5)
ROWS = st.lists(st.builds(PlannedRows, *[st.integers(1, 2**31 - 1)] * 4), max_size=3)
TREES = st.lists(st.builds(PlannedTree, *[st.integers(1, 2**31 - 1)] * 3), max_size=3)


@given(plan=st.builds(PassPlan[int], NUMBERS, NUMBERS, NUMBERS, ROWS, TREES))
def test_a_plan_arrives_as_it_was_sent(plan: PassPlan[int]) -> None:
    words = encoded(plan)
    assert all(0 <= word < 2**31 for word in words)
    assert decoded(words) == plan


class Mirrored:
    """A cache of rank 0 with few cells, and what another rank keeps."""

    def __init__(self) -> None:
        own = TorchStorage(AttentionShape(1, 2, 1, 2), torch.float32, feature_size=3)
        self.storage = MirroredStorage(own)
        self.cache = KVCache[SequenceStorage](self.storage, 4)
        self.others = Storages(TorchStorage(own.shape, own.dtype))
        self.running: list[KVSequence[SequenceStorage]] = []
        self.texts: dict[int, list[int]] = {}
        self.counter = 0

    def tell(self) -> None:
        carry_out(self.storage.taken_notes(), self.others)

    def check(self) -> None:
        """Every storage that is in use is there, has the same content, and nothing else is."""
        self.tell()
        held = self.others.held
        for kv in self.running:
            number = self.storage.number(kv.storage)
            assert torch.equal(held[number].key_value, kv.storage.key_value)
        assert len(held) == self.storage.num_alive

    def open(self, seed: int) -> None:
        """A sequence, with a text of its own or one that others begin with, too."""
        text = [seed % 3] * 40
        kv = self.cache.open(text, salt="")
        if not self.cache.reserve(kv, 700 if seed % 5 == 0 else 60):
            return self.cache.release(kv)
        self.tell()
        self.fill(kv, len(text))
        self.cache.register(kv, text)
        self.running.append(kv)

    def fill(self, kv: KVSequence[SequenceStorage], end: int) -> None:
        """As a pass does, at all ranks."""
        self.counter += 1
        for storage in (kv.storage, self.others.held[self.storage.number(kv.storage)]):
            storage.key_value[:, :, :, kv.num_tokens : end] = self.counter
        kv.num_tokens = max(kv.num_tokens, end)

    def keep_path(self, seed: int) -> None:
        if self.running and self.running[seed % len(self.running)].num_tokens < 55:
            kv = self.running[seed % len(self.running)]
            kv.tree = tree = self.storage.allocate_tokens(4)
            self.tell()
            for storage in (tree, self.others.held[self.storage.number(tree)]):
                storage.key_value[:] = torch.arange(4.0)[:, None]
            self.cache.keep_path(kv, [0, 2, 3])

    def close(self, seed: int) -> None:
        if self.running:
            self.cache.release(self.running.pop(seed % len(self.running)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["open", "keep_path", "close"]), st.integers(0, 99))))
def test_storages_of_other_ranks_follow_whatever_the_cache_does(
    steps: list[tuple[str, int]],
) -> None:
    mirrored = Mirrored()
    for name, seed in steps:
        step: Callable[[int], None] = getattr(mirrored, name)
        step(seed)
        mirrored.check()


@pytest.mark.parametrize(
    "length, size, expected", [(9, 3, [3, 3, 3]), (8, 3, [3, 3, 2]), (3, 4, [1, 1, 1, 0])]
)
def test_what_does_not_divide_evenly_leaves_less_to_the_last_rank(
    length: int, size: int, expected: list[int]
) -> None:
    assert split(length, size) == expected


@pytest.mark.parametrize("size, possible", [(2, "1, 3"), (4, "1, 3"), (9, "1, 3")])
def test_a_number_of_ranks_that_does_not_divide_the_heads_is_refused_with_those_that_do(
    size: int, possible: str
) -> None:
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3}
    config = AutoConfig.for_model("llama", hidden_size=576, intermediate_size=1536, **heads)
    with pytest.raises(InvalidConfig) as refused:
        distributed_config("SmolLM2", config, size)
    assert refused.value.message == (
        f"tensor_parallel_size is {size}; the model 'SmolLM2' has 9 attention heads, 3 key heads, "
        "1536 inner features of its MLP, which have to be divided evenly: expected one of "
        f"{possible}"
    )
