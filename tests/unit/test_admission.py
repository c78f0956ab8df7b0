"""What is wrong with a request is said by name before its first token."""

from dataclasses import replace
from typing import Any

import pytest
from real_tokenizers import table_tokenizer

from coordinator.admission import (
    MAX_CHOICES,
    Admitted,
    check_resume_from,
    check_speculation,
    check_values,
    sequence_settings,
    token_limit,
    with_rule,
)
from coordinator.requests import GenerationRequest, Speculation
from paceline.errors import InvalidRequest
from paceline.rounds import AcceptanceRule, SequenceSettings

VOCAB_SIZE = 261
BOS, EOS = 256, 257
REQUEST = GenerationRequest("r-1", "Hello")


def by_method(method: str) -> Speculation:
    return Speculation(method, acceptance_rule="coupled")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_id", "has blanks"),
        ("request_id", ""),
        ("request_id", "x" * 129),
        ("n", 0),
        ("n", MAX_CHOICES + 1),
        ("max_tokens", -1),
        ("min_tokens", -1),
        ("num_logprobs", -1),
        ("num_logprobs", 21),
        ("prompt_logprobs", True),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("top_k", 2**32),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("presence_penalty", -2.1),
        ("presence_penalty", float("nan")),
        ("frequency_penalty", 2.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("seed", -1),
        ("seed", 2**64),
        ("stop", ("a",) * 5),
        ("stop", ("a", "")),
        ("stop", ("a" * 4097,)),
        ("session_id", "a" * 257),
        ("stop_token_ids", (3,) * (VOCAB_SIZE + 1)),
        ("stop_token_ids", (3, VOCAB_SIZE)),
        ("stop_token_ids", (-1,)),
        ("logit_bias", ((VOCAB_SIZE, 1.0),)),
        ("logit_bias", ((3, -101.0),)),
        ("logit_bias", ((3, float("nan")),)),
    ],
)
def test_a_value_that_no_model_could_use_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_values(replace(REQUEST, **{field: value}), VOCAB_SIZE)
    assert refusal.value.field == field
    assert refusal.value.message.startswith(f"{field}: is ")
    assert "expected" in refusal.value.message


@pytest.mark.parametrize("number", [-1, 65])
def test_a_number_of_drafts_out_of_bounds_is_refused_by_name(number: int) -> None:
    request = replace(REQUEST, speculation=Speculation("auto", number))
    with pytest.raises(InvalidRequest) as refusal:
        check_values(request, VOCAB_SIZE)
    assert refusal.value.field == "speculation.num_speculative_tokens"


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"max_tokens": 1, "temperature": 0.0, "top_p": 1e-9, "min_p": 1.0, "top_k": 2**32 - 1},
        {"num_logprobs": 0, "max_tokens": 0},
        {"num_logprobs": 20, "prompt_logprobs": True},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0, "repetition_penalty": 0.01},
        {"temperature": 2.0, "seed": 2**64 - 1, "stop": ("a", "b", "c", "d")},
        {"stop_token_ids": (0, 260), "logit_bias": ((0, -100.0), (260, 100.0))},
        {"speculation": Speculation("off", 0), "request_id": "~" * 128},
        {"stop": ("a" * 4096,), "session_id": "a" * 256, "stop_token_ids": (3,) * VOCAB_SIZE},
    ],
)
def test_values_at_their_bounds_are_taken(values: dict[str, Any]) -> None:
    check_values(replace(REQUEST, **values), VOCAB_SIZE)


@pytest.mark.parametrize("method", ["auto", "off", "self"])
def test_a_method_that_is_served_is_taken(method: str) -> None:
    check_speculation(by_method(method), {"self", "suffix"})


@pytest.mark.parametrize("rule", ["coupled", "rejection", "block"])
def test_the_rule_of_a_request_wins_over_the_services_own(rule: str) -> None:
    asked = replace(REQUEST, speculation=Speculation(acceptance_rule=rule))
    for own in ("coupled", "rejection"):
        assert with_rule(asked, own) == asked
        assert with_rule(REQUEST, own).speculation.acceptance_rule == own
    check_speculation(asked.speculation, set())
    assert settings_of(asked).acceptance_rule is AcceptanceRule[rule.upper()]


@pytest.mark.parametrize("rule", ["typical", "COUPLED", " "])
def test_a_rule_that_there_is_not_is_refused_with_those_that_are(rule: str) -> None:
    with pytest.raises(InvalidRequest, match="coupled, rejection, block") as refusal:
        check_speculation(Speculation(acceptance_rule=rule), set())
    assert refusal.value.field == "speculation.acceptance_rule"


def test_a_method_that_is_not_served_is_refused_with_those_that_are() -> None:
    with pytest.raises(InvalidRequest, match="'eagle'.*auto, off, self, suffix"):
        check_speculation(Speculation("eagle"), {"self", "suffix"})


@pytest.mark.parametrize("drafters", [{"self", None}, {None}])
def test_a_drafter_that_may_still_come_up_is_taken(drafters: set[str | None]) -> None:
    check_speculation(by_method("eagle"), drafters)
    check_speculation(by_method("auto"), drafters)


@pytest.mark.parametrize(
    ("max_tokens", "num_prompt", "expected"), [(None, 10, 90), (5, 10, 5), (90, 10, 90)]
)
def test_the_limit_is_the_requests_or_what_the_context_leaves(
    max_tokens: int | None, num_prompt: int, expected: int
) -> None:
    assert token_limit(replace(REQUEST, max_tokens=max_tokens), num_prompt, [100]) == expected


@pytest.mark.parametrize(
    ("limits", "num_prompt", "expected"),
    [
        ({}, 10, 90),  # an open limit that all can meet
        ({}, 100, 100),  # all that can take the prompt
        ({"min_tokens": 91}, 10, 190),
        ({"max_tokens": 150}, 10, 150),  # one is enough
        ({"max_tokens": 290}, 10, 290),
    ],
)
def test_of_unequal_targets_some_must_take_the_request(
    limits: dict[str, int], num_prompt: int, expected: int
) -> None:
    assert token_limit(replace(REQUEST, **limits), num_prompt, [100, 300, 200]) == expected


def test_what_fits_no_target_is_refused_with_the_limit_of_the_longest() -> None:
    with pytest.raises(InvalidRequest, match="up to 300 tokens"):
        token_limit(replace(REQUEST, max_tokens=291), 10, [100, 300, 200])


@pytest.mark.parametrize(
    ("field", "num_prompt", "limits"),
    [
        ("prompt", 100, {}),
        ("prompt", 101, {"max_tokens": 1}),
        ("max_tokens", 10, {"max_tokens": 91}),
        ("min_tokens", 10, {"max_tokens": 5, "min_tokens": 6}),
        ("min_tokens", 10, {"min_tokens": 91}),
    ],
)
def test_what_does_not_fit_is_refused_with_the_limit(
    field: str, num_prompt: int, limits: dict[str, int]
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        token_limit(replace(REQUEST, **limits), num_prompt, [100])
    assert refusal.value.field == field
    assert any(limit in refusal.value.message for limit in ("100", "limit of 5", "limit of 90"))


def settings_of(request: GenerationRequest) -> SequenceSettings:
    generation = Admitted(
        request=with_rule(request, "coupled"),
        prompt_token_ids=(1, 2, 3),
        seed=77,
        max_tokens=10,
        created=0,
    )
    return sequence_settings(generation, table_tokenizer())


def test_lengths_count_the_prompt_and_the_seed_is_the_generations() -> None:
    request = replace(
        REQUEST,
        min_tokens=4,
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        min_p=0.1,
        logit_bias=((5, 1.0),),
        stop_token_ids=(9, EOS, 9),
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.2,
        num_logprobs=2,
    )
    assert settings_of(request) == SequenceSettings(
        max_length=13,
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        min_p=0.1,
        seed=77,
        logit_bias=((5, 1.0),),
        stop_token_ids=(EOS, 9),
        min_length=7,
        prompt_length=3,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.2,
        num_logprobs=2,
    )


def test_the_end_of_the_text_stops_unless_ignored() -> None:
    assert settings_of(REQUEST).stop_token_ids == (EOS,)
    ignoring = replace(REQUEST, ignore_eos=True, stop_token_ids=(9,))
    assert settings_of(ignoring).stop_token_ids == (9,)


@pytest.mark.parametrize(
    ("resume_from", "words"),
    [
        ((0,), "has 1 numbers of tokens; expected 2"),
        ((0, 0, 0), "has 3 numbers of tokens; expected 2"),
        ((0, 11), "11 is not a number of tokens of this answer; expected 0 to 10"),
    ],
)
def test_a_place_to_resume_from_is_a_number_of_tokens_for_each_choice(
    resume_from: tuple[int, ...], words: str
) -> None:
    generation = recorded(n=2)
    with pytest.raises(InvalidRequest, match=words):
        check_resume_from(resume_from, generation, 0)
    check_resume_from((0, 10), generation, 0)


@pytest.mark.parametrize(("n", "met", "not_met"), [(1, [(0,), (4,)], (5,)), (2, [(0, 0)], (0, 1))])
def test_what_would_come_out_otherwise_is_resumed_only_as_far_as_it_is_on_record(
    n: int, met: list[tuple[int, ...]], not_met: tuple[int, ...]
) -> None:
    generation = recorded(n=n, speculation=Speculation(acceptance_rule="rejection"))
    for resume_from in met:
        check_resume_from(resume_from, generation, 4)
    with pytest.raises(InvalidRequest, match="'rejection' would not make the others again"):
        check_resume_from(not_met, generation, 4)
    check_resume_from(not_met, recorded(n=n), 4)
    greedy = replace(generation, request=replace(generation.request, temperature=0))
    check_resume_from(not_met, greedy, 4)


def recorded(**changes: Any) -> Admitted:
    request = replace(with_rule(REQUEST, "coupled"), **changes)
    return Admitted(request=request, prompt_token_ids=(1,), seed=0, max_tokens=10, created=0)


def test_the_choices_of_a_request_differ_in_their_noise_alone() -> None:
    generation = Admitted(
        request=with_rule(REQUEST, "coupled"),
        prompt_token_ids=(1, 2, 3),
        seed=77,
        max_tokens=10,
        created=0,
    )
    first, other = (sequence_settings(generation, table_tokenizer(), i) for i in (0, 2))
    assert (first.choice, other.choice) == (0, 2)
    assert replace(other, choice=0) == first
