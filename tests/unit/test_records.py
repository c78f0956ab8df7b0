"""How records are written, and how long memory keeps them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.memory_store import MemoryStore
from coordinator.records import (
    Lease,
    Placement,
    decode_generation,
    encode_generation,
    fresh_epoch,
    pack_token_ids,
    unpack_token_ids,
)
from coordinator.requests import FinishReason, Generation, GenerationRequest, Speculation
from paceline.errors import InvalidRequest, Unavailable

TOKEN_IDS = st.lists(st.integers(0, 2**32 - 1), max_size=20).map(tuple)
FLOATS = st.floats(allow_nan=False)
REQUESTS = st.builds(
    GenerationRequest,
    request_id=st.text(),
    prompt=TOKEN_IDS,
    max_tokens=st.none() | st.integers(1, 99),
    temperature=FLOATS,
    seed=st.none() | st.integers(0, 2**64 - 1),
    stop=st.lists(st.text()).map(tuple),
    stop_token_ids=TOKEN_IDS,
    logit_bias=st.lists(st.tuples(st.integers(0, 9), FLOATS)).map(tuple),
    speculation=st.builds(Speculation, st.text(), st.none() | st.integers(0, 8)),
    session_id=st.text(),
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def generation(request_id: str = "r", prompt_token_ids: tuple[int, ...] = (1, 2)) -> Generation:
    request = GenerationRequest(request_id, "a text", session_id="s")
    return Generation(request, prompt_token_ids, seed=7, max_tokens=10, created=1)


@given(REQUESTS, st.integers(0, 2**64 - 1))
def test_a_request_comes_back_as_it_was_written(request: GenerationRequest, seed: int) -> None:
    assert isinstance(request.prompt, tuple)
    admitted = Generation(request, request.prompt, seed, max_tokens=5, created=123)
    assert decode_generation(request.request_id, encode_generation(admitted)) == admitted


def test_a_prompt_comes_back_as_the_token_ids_that_were_made_of_it() -> None:
    resumed = decode_generation("r", encode_generation(generation(prompt_token_ids=(10, 13, 0))))
    assert resumed.request.prompt == resumed.prompt_token_ids == (10, 13, 0)


@pytest.mark.parametrize(
    "body", [b"", b"{}\n", b"[1]\n", b'{"request": {"a_field_of_tomorrow": 1}}\n']
)
def test_what_cannot_be_read_is_refused_by_the_name_of_its_request(body: bytes) -> None:
    with pytest.raises(Unavailable, match="request_id 'r7' cannot be read by this version"):
        decode_generation("r7", body)


def test_ids_take_four_bytes_little_endian() -> None:
    assert pack_token_ids([1, 0x01020304]).hex() == "0100000004030201"


@given(TOKEN_IDS)
def test_packed_ids_come_back(token_ids: tuple[int, ...]) -> None:
    assert tuple(unpack_token_ids(pack_token_ids(token_ids))) == token_ids


def test_an_epoch_is_above_the_one_before_even_if_that_is_from_the_future() -> None:
    now = fresh_epoch()
    assert 0 <= fresh_epoch(previous=1) - now < 1000
    assert fresh_epoch(previous=now + 10**9) == now + 10**9 + 1


async def test_a_record_is_kept_for_an_hour_after_it_was_last_written() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    written = await store.open(generation("written"))
    await store.open(generation("silent"))
    store.remember_affinity("s", Placement("t"))
    clock.now += 3599
    store.append(written, 0, [5])
    assert await store.affinity("s") == Placement("t")
    clock.now += 2
    assert await store.takeover("silent") is None
    assert await store.affinity("s") is None
    resumed = await store.takeover("written")
    assert resumed is not None
    assert resumed.token_ids == (5,)


async def test_the_records_written_last_stay_when_there_is_no_room_for_all() -> None:
    dropped: list[str] = []

    def hear(lease: Lease) -> None:
        dropped.append(lease.request_id)

    size = len(encode_generation(generation("a")))
    store = MemoryStore(max_record_bytes=2 * size + 4, on_drop=hear)
    first = await store.open(generation("a"))
    await store.open(generation("b"))
    store.append(first, 0, [1])
    assert dropped == []
    await store.open(generation("c"))
    assert dropped == ["b"]
    store.append(first, 1, [2] * size)
    assert dropped == ["b", "c"]
    assert await store.takeover("a") is not None, "a record of any size has room when alone"


async def test_one_whose_record_was_dropped_does_not_write_into_another_of_its_name() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    old = await store.open(generation("r"))
    clock.now += 4000
    new = await store.open(generation("r"))
    store.append(old, 0, [1, 2, 3])
    assert old.lost
    store.append(new, 0, [9])
    resumed = await store.takeover("r")
    assert resumed is not None
    assert resumed.token_ids == (9,)


async def test_a_name_on_record_is_refused_by_name() -> None:
    store = MemoryStore()
    await store.open(generation("r"))
    with pytest.raises(InvalidRequest, match="'r' is on record already") as caught:
        await store.open(generation("r"))
    assert caught.value.field == "request_id"


async def test_after_a_takeover_only_the_new_owner_writes() -> None:
    store = MemoryStore()
    old = await store.open(generation())
    store.append(old, 0, [1, 2])
    store.place(old, Placement("t", "d", "n"))
    resumed = await store.takeover("r")
    assert resumed is not None
    assert old.lost
    store.append(resumed.lease, 2, [4])
    store.append(old, 2, [3])
    store.finish(old, FinishReason.STOP)
    store.place(old, Placement("elsewhere"))
    again = await store.takeover("r")
    assert again is not None
    assert again.token_ids == (1, 2, 4)
    assert again.finish_reason is None
    assert again.placement == Placement("t", "d", "n")
    assert again.lease.epoch > resumed.lease.epoch > old.epoch
