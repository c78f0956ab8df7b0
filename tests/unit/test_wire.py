"""What is said arrives: every field of every message, there and back."""

from dataclasses import fields
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import sequence_wire, wire
from paceline.rounds import (
    AcceptanceRule,
    DraftFault,
    Drafts,
    Features,
    PassCost,
    ProposeResult,
    ProposeRound,
    RoundError,
    RoundErrorReason,
    RoundTiming,
    SequenceSettings,
    Support,
    TokenLogprobs,
    TokenSpan,
    VerifyResult,
    VerifyRound,
    WorkerInfo,
    WorkerLoad,
)
from paceline.v1 import target_pb2, tokens_pb2

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
TOKEN_IDS = st.lists(U32, max_size=5).map(tuple)
NUMBERS = st.floats(allow_nan=False)
TEXTS = st.text(max_size=8)

SPANS = st.builds(TokenSpan, U32, U64, TOKEN_IDS)
SETTINGS = st.builds(
    SequenceSettings,
    max_length=U32,
    temperature=NUMBERS,
    top_k=U32,
    top_p=NUMBERS.filter(bool),
    min_p=NUMBERS,
    seed=U64,
    choice=U32,
    logit_bias=st.lists(st.tuples(U32, NUMBERS), max_size=3).map(tuple),
    stop_token_ids=TOKEN_IDS,
    min_length=U32,
    cache_salt=TEXTS,
    prompt_length=U32,
    presence_penalty=NUMBERS,
    frequency_penalty=NUMBERS,
    repetition_penalty=NUMBERS.filter(bool),
    acceptance_rule=st.sampled_from(AcceptanceRule),
    num_logprobs=st.none() | U32,
    grammar=TEXTS,
)
SINGLES = st.floats(allow_nan=False, width=32)
SUPPORTS = st.builds(Support, TOKEN_IDS, st.lists(SINGLES, max_size=3).map(tuple))
FEATURES = st.builds(Features, U32, U32, st.binary(max_size=4))
LOGPROBS = st.builds(TokenLogprobs, SINGLES, TOKEN_IDS, st.lists(SINGLES, max_size=3).map(tuple))


@st.composite
def drafts(draw: st.DrawFn) -> Drafts:
    token_ids = draw(TOKEN_IDS)
    parent = st.integers(-1, 2**31 - 1)
    num_parents = draw(st.sampled_from([0, len(token_ids)]))
    supports = tuple(draw(SUPPORTS) for _ in token_ids) if draw(st.booleans()) else ()
    percents = draw(st.lists(st.integers(0, 100), max_size=len(token_ids)))
    confidences = tuple(percent / 100 for percent in percents)
    parents = tuple(draw(parent) for _ in range(num_parents))
    return Drafts(token_ids, parents, supports, confidences)


TIMINGS = st.builds(RoundTiming, U32, U32, U32, U32, U32, U32)
ERRORS = st.builds(RoundError, st.sampled_from(RoundErrorReason), TEXTS)
LOADS = st.builds(WorkerLoad, U32, U32, U32, U32, U64, st.booleans())
PROPOSE_ROUNDS = st.builds(
    ProposeRound,
    TEXTS,
    U32,
    SPANS,
    U32,
    st.none() | SETTINGS,
    traceparent=TEXTS,
    features=st.none() | FEATURES,
    min_confidence=SINGLES,
    min_step_confidence=SINGLES,
    max_steps=U32,
    tracestate=TEXTS,
)
VERIFY_ROUNDS = st.builds(
    VerifyRound,
    TEXTS,
    U32,
    SPANS,
    drafts(),
    st.integers(1, 2**32 - 1),
    st.none() | SETTINGS,
    traceparent=TEXTS,
    score_from=st.none() | U32,
    features_from=st.none() | U32,
    tracestate=TEXTS,
)
PROPOSE_RESULTS = st.builds(
    ProposeResult,
    TEXTS,
    U32,
    st.none() | U32,
    drafts(),
    TIMINGS,
    st.none() | ERRORS,
    features_from=st.none() | U32,
    fault=st.none() | st.sampled_from(DraftFault),
)
VERIFY_RESULTS = st.builds(
    VerifyResult,
    sequence_id=TEXTS,
    round=U32,
    held=st.none() | U32,
    start=U32,
    token_ids=TOKEN_IDS,
    num_draft_tokens=U32,
    num_accepted_tokens=U32,
    last=st.booleans(),
    timing=TIMINGS,
    error=st.none() | ERRORS,
    logprobs=st.lists(LOGPROBS, max_size=3).map(tuple),
    features=st.none() | FEATURES,
)
INFOS = st.builds(
    WorkerInfo,
    instance_id=TEXTS,
    version=TEXTS,
    model=TEXTS,
    numerics=TEXTS,
    varies_with_width=st.booleans(),
    tokenizer_digest=TEXTS,
    vocab_size=U32,
    max_model_len=U32,
    max_speculative_tokens=U32,
    drafter=TEXTS,
    pass_costs=st.lists(st.builds(PassCost, U32, U32, NUMBERS), max_size=3).map(tuple),
    feature_layers=TOKEN_IDS,
    feature_size=U32,
    feature_projection=TEXTS,
    num_parameters=U64,
    started_at_ms=U64,
    protocol_major=U32,
    protocol_minor=U32,
)


def plain(value: Any) -> Any:
    """A value with every sequence as a list: a message's own containers compare as such."""
    if isinstance(value, Enum | str | int | float | None):
        return value
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return [plain(item) for item in value]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("propose_round", PROPOSE_ROUNDS),
        ("propose_result", PROPOSE_RESULTS),
        ("verify_round", VERIFY_ROUNDS),
        ("verify_result", VERIFY_RESULTS),
        ("load", LOADS),
        ("info", INFOS),
    ],
)
def test_every_field_arrives(name: str, values: st.SearchStrategy[Any]) -> None:
    to_wire = getattr(wire, f"{name}_to_wire")
    from_wire = getattr(wire, f"{name}_from_wire")

    @given(values)
    def there_and_back(value: Any) -> None:
        message = to_wire(value)
        received = from_wire(type(message).FromString(message.SerializeToString()))
        assert plain(received) == plain(value)

    there_and_back()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (SequenceSettings, SETTINGS),
        (VerifyRound, VERIFY_ROUNDS),
        (VerifyResult, VERIFY_RESULTS),
        (ProposeRound, PROPOSE_ROUNDS),
        (ProposeResult, PROPOSE_RESULTS),
        (WorkerLoad, LOADS),
        (WorkerInfo, INFOS),
        (RoundTiming, TIMINGS),
    ],
)
def test_the_values_drawn_here_reach_every_field(
    kind: type, values: st.SearchStrategy[Any]
) -> None:
    """A field added to a message but not to its conversion would otherwise go unnoticed."""
    missing = {field.name for field in fields(kind)}
    defaults = {field.name: field.default for field in fields(kind)}

    @given(values)
    def draw(value: Any) -> None:
        changed = {name for name in missing if getattr(value, name) != defaults[name]}
        missing.difference_update(changed)

    draw()
    assert missing == set()


def test_what_is_unset_in_a_message_has_the_meaning_that_the_protocol_gives_it() -> None:
    round = wire.verify_round_from_wire(target_pb2.VerifyRound())
    assert round.max_new_tokens == 1
    assert round.settings is None
    assert round.drafts.token_ids == ()
    message = target_pb2.VerifyRound(settings=tokens_pb2.SequenceSettings(max_length=3))
    assert sequence_wire.settings_from_wire(message) == SequenceSettings(max_length=3)
    result = wire.verify_result_from_wire(target_pb2.VerifyResult())
    assert (result.held, result.error, result.last) == (None, None, False)


def test_a_worker_that_holds_nothing_says_so() -> None:
    message = wire.verify_result_to_wire(VerifyResult("a", 1, held=0))
    assert wire.verify_result_from_wire(message).held == 0


def test_a_reason_that_we_do_not_know_counts_as_a_failure_of_the_worker() -> None:
    message = target_pb2.VerifyResult()
    message.error.message = "too hot"
    for unknown in (0, 99):
        message.error.reason = unknown
        error = wire.verify_result_from_wire(message).error
        assert error == RoundError(RoundErrorReason.INTERNAL, "too hot")


def test_the_reasons_have_the_numbers_of_the_protocol() -> None:
    names = {reason.value: f"ROUND_ERROR_REASON_{reason.name}" for reason in RoundErrorReason}
    protocol = {value: name for name, value in tokens_pb2.RoundErrorReason.items() if value}
    assert names == protocol


def test_the_rules_have_the_numbers_of_the_protocol() -> None:
    names = {rule.value: f"ACCEPTANCE_RULE_{rule.name}" for rule in AcceptanceRule}
    protocol = {value: name for name, value in tokens_pb2.AcceptanceRule.items() if value}
    assert names == protocol


def test_a_rule_that_we_do_not_know_is_read_as_the_one_that_is_right_for_all_drafts() -> None:
    message = target_pb2.VerifyRound()
    message.settings.acceptance_rule = 99  # type: ignore[assignment]
    settings = sequence_wire.settings_from_wire(message)
    assert settings is not None
    assert settings.acceptance_rule is AcceptanceRule.COUPLED
