"""Spans: a log is always the token list that one would write down by hand, or it says so."""

import json
import struct
from array import array
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paceline.rounds import TokenSpan
from paceline.token_log import TokenLog, common_length, prefix_hash

VECTORS = json.loads(
    (Path(__file__).parents[2] / "protos" / "prefix_hash_vectors.json").read_text(encoding="utf-8")
)["vectors"]

TOKEN_IDS = st.lists(st.integers(0, 3), max_size=6)
"""Few kinds, so that different histories often agree for a while."""


def hash_by_hand(token_ids: list[int]) -> int:
    packed = b"".join(struct.pack("<I", token_id) for token_id in token_ids)
    (value,) = struct.unpack("<Q", blake2b(packed, digest_size=8).digest())
    return int(value)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{len(vector['token_ids'])} tokens")
def test_the_published_hashes_are_ours_and_those_computed_by_hand(
    vector: dict[str, list[int] | str],
) -> None:
    token_ids, published = vector["token_ids"], int(str(vector["prefix_hash"]), 16)
    assert isinstance(token_ids, list)
    assert prefix_hash(array("I", token_ids)) == published == hash_by_hand(token_ids)


def test_the_hash_of_no_tokens_is_the_one_in_the_protocol() -> None:
    assert prefix_hash(array("I")) == 0xB4B2797457A0A6E4


def test_no_two_vectors_share_a_hash() -> None:
    hashes = [vector["prefix_hash"] for vector in VECTORS]
    assert len(set(hashes)) == len(hashes) > 10


@given(TOKEN_IDS, TOKEN_IDS)
def test_the_common_length_is_counted_token_by_token(a: list[int], b: list[int]) -> None:
    expected = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        expected += 1
    assert common_length(array("I", a), array("I", b)) == expected


@given(TOKEN_IDS, TOKEN_IDS, st.data())
def test_one_span_brings_a_worker_that_holds_a_true_prefix_up_to_date(
    token_ids: list[int], stale: list[int], data: st.DataObject
) -> None:
    owner = TokenLog.of(token_ids)
    start = data.draw(st.integers(0, len(owner)))
    worker = TokenLog.of([*token_ids[:start], *stale])
    assert worker.sync(owner.span(start))
    assert worker == owner


class SpanMachine(RuleBasedStateMachine):
    """A worker's log under spans that are right, repeated, out of date, too far on, or lies."""

    def __init__(self) -> None:
        super().__init__()
        self.log = TokenLog()
        self.expected: list[int] = []
        self.sent: list[TokenSpan] = []

    def send(self, span: TokenSpan) -> None:
        self.sent.append(span)
        prefix = self.expected[: span.start]
        is_true = span.start == len(prefix) and hash_by_hand(prefix) == span.prefix_hash
        if is_true:
            self.expected = [*prefix, *span.token_ids]
        assert self.log.sync(span) is is_true

    @rule(token_ids=TOKEN_IDS)
    def append(self, token_ids: list[int]) -> None:
        self.send(TokenSpan(len(self.expected), hash_by_hand(self.expected), token_ids))

    @rule(token_ids=TOKEN_IDS, data=st.data())
    def roll_back(self, token_ids: list[int], data: st.DataObject) -> None:
        start = data.draw(st.integers(0, len(self.expected)))
        self.send(TokenSpan(start, hash_by_hand(self.expected[:start]), token_ids))

    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        if self.sent:
            self.send(data.draw(st.sampled_from(self.sent)))

    @rule(token_ids=TOKEN_IDS, start=st.integers(0, 20), prefix_hash=st.integers(0, 2**64 - 1))
    def lie(self, token_ids: list[int], start: int, prefix_hash: int) -> None:
        self.send(TokenSpan(start, prefix_hash, token_ids))

    @rule(believed=TOKEN_IDS, token_ids=TOKEN_IDS)
    def believe_something_else(self, believed: list[int], token_ids: list[int]) -> None:
        self.send(TokenSpan(len(believed), hash_by_hand(believed), token_ids))

    @rule(more=st.integers(1, 3))
    def start_behind_the_end(self, more: int) -> None:
        start = len(self.expected) + more
        self.send(TokenSpan(start, hash_by_hand(self.expected), [1]))

    @invariant()
    def the_log_is_the_list_kept_by_hand(self) -> None:
        assert list(self.log.token_ids) == self.expected
        assert self.log.prefix_hash(len(self.log)) == hash_by_hand(self.expected)


TestSpans = SpanMachine.TestCase
TestSpans.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
