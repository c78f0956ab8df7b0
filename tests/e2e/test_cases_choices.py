"""Several choices and predictions on the default model, as users of other engines met them."""

import json
from typing import Any

import pytest
from answers import OFF, Body, events, post
from cases import HA, ONE, force
from processes import Stack

pytestmark = pytest.mark.timeout(900)

SAMPLED: Body = {
    "prompt": "Once upon a time",
    "max_tokens": 24,
    "n": 4,
    "temperature": 1.0,
    "seed": 7,
}


async def answer_to(stack: Stack, body: Body) -> dict[str, Any]:
    response = await post(stack.coordinator, body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_choices_are_several_repeatable_and_the_same_without_drafts(
    model_stack: Stack,
) -> None:
    """CASES 21."""
    answer = await answer_to(model_stack, SAMPLED)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert len({choice["text"] for choice in answer["choices"]}) == 4
    assert (await answer_to(model_stack, SAMPLED))["choices"] == answer["choices"]
    off = await answer_to(model_stack, SAMPLED | {"speculation": OFF})
    assert off["choices"] == answer["choices"]
    assert off["usage"] == answer["usage"]
    alone = await answer_to(model_stack, SAMPLED | {"n": 1})
    assert alone["choices"] == answer["choices"][:1]


async def test_greedy_choices_are_equal(model_stack: Stack) -> None:
    """CASES 21."""
    answer = await answer_to(model_stack, SAMPLED | {"temperature": 0, "max_tokens": 12})
    assert len({choice["text"] for choice in answer["choices"]}) == 1
    assert answer["usage"]["completion_tokens"] == 4 * 12


async def test_a_prediction_is_part_of_the_answers_tokens_and_changes_none(
    model_stack: Stack,
) -> None:
    """CASES 46."""
    body: Body = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 40}
    plain = await answer_to(model_stack, body | {"speculation": OFF})
    text = plain["choices"][0]["text"]
    answer = await answer_to(
        model_stack, body | {"prediction": {"type": "content", "content": text}}
    )
    assert answer["choices"] == plain["choices"]
    usage = answer["usage"]
    details = usage.pop("completion_tokens_details")
    assert usage == plain["usage"]
    assert 0 < details["accepted_prediction_tokens"] < 40
    passes = answer["metrics"]["speculative_decoding"]["num_target_passes"]
    assert passes < 40 - details["accepted_prediction_tokens"] / 2


async def test_nothing_of_a_prediction_that_cannot_come_true_is_accepted(
    model_stack: Stack,
) -> None:
    """CASES 13 and 46."""
    body: Body = {
        "prompt": "ha",
        **force(ONE),
        "max_tokens": 12,
        "prediction": {"type": "content", "content": " ha" * 30},
    }
    answer = await answer_to(model_stack, body)
    assert answer["choices"][0]["text"] == "1" * 12
    details = answer["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == 0
    banned = body | {"temperature": 0, "logit_bias": {str(HA): -100}}
    answer = await answer_to(model_stack, banned)
    assert " ha" * 2 not in answer["choices"][0]["text"]


async def test_each_choice_of_a_stream_has_one_finish_reason(model_stack: Stack) -> None:
    """CASES 21 and 26."""
    body = SAMPLED | {"stream_options": {"include_usage": True}}
    *chunks, done = [event async for event in events(model_stack.coordinator, body)]
    assert done == "[DONE]"
    *parts, usage = [json.loads(chunk) for chunk in chunks]
    reasons = [
        choice["index"]
        for part in parts
        for choice in part["choices"]
        if choice["finish_reason"] is not None
    ]
    assert sorted(reasons) == [0, 1, 2, 3]
    assert usage["choices"] == []
    whole = await answer_to(model_stack, SAMPLED)
    assert usage["usage"] == whole["usage"]
