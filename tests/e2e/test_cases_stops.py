"""Stops, ends and length limits inside an accepted block, as users of other engines met them."""

import asyncio

import pytest
from answers import OFF, Body, FrontEnd, ask, drafts, post
from cases import (
    HA,
    HALF_SMILE,
    MODEL_MODES,
    ONE,
    ONLY_SMILES,
    OTHER_HALF,
    SMILES,
    ask_every_way,
    force,
)
from observed import is_idle, metrics, soon
from processes import Stack

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize(("stop", "text"), [([" ha"], ""), ("h", " "), (["xyz", "ha"], " ")])
async def test_a_stop_at_the_start_of_a_long_block_is_seen(
    model_stack: Stack, stop: str | list[str], text: str
) -> None:
    """CASES 3."""
    body = {"prompt": " ha ha ha", **force(HA), "stop": stop, "max_tokens": 64}
    modes = (*MODEL_MODES, drafts("suffix", 16), drafts("self", 16))
    answer = await ask_every_way(model_stack.coordinator, body, modes)
    assert (answer.text, answer.num_completion_tokens, answer.finish_reason) == (text, 1, "stop")


async def test_tokens_behind_a_stop_are_not_returned(model_stack: Stack) -> None:
    """CASES 4, without log-probabilities."""
    body = {"prompt": "11111", **force(ONE), "stop": ["111"], "max_tokens": 5}
    answer = await ask_every_way(model_stack.coordinator, body, MODEL_MODES)
    assert answer.token_ids == (ONE, ONE, ONE)
    assert (answer.text, answer.num_completion_tokens) == ("", 3)


@pytest.mark.parametrize("drafter", ["suffix", "draft-model", "self"])
@pytest.mark.parametrize("num_drafts", [1, 3, 8])
async def test_max_tokens_is_met_exactly_wherever_it_cuts_a_block(
    table_stack: Stack, drafter: str, num_drafts: int
) -> None:
    """CASES 5."""
    coordinator = table_stack.coordinator
    body = {"prompt": "to be or not to be or not", "temperature": 0, "ignore_eos": True}
    longest = 2 * num_drafts + 3
    plain = await ask(coordinator, {**body, "max_tokens": longest, "speculation": OFF})
    for max_tokens in range(1, longest + 1):
        before = await metrics(coordinator)
        request = {**body, "max_tokens": max_tokens, "speculation": drafts(drafter, num_drafts)}
        answers = await asyncio.gather(*(ask(coordinator, request, end) for end in FrontEnd))
        for answer in answers:
            assert answer.token_ids == plain.token_ids[:max_tokens]
            assert answer.num_completion_tokens == max_tokens
            assert answer.finish_reason == "length"
        after = await metrics(coordinator)
        num_counted = after["generation_tokens_total"] - before["generation_tokens_total"]
        assert num_counted == len(answers) * max_tokens
    await soon(lambda: is_idle(coordinator), "no sequence is left behind, not at the draft either")


async def test_nothing_of_a_stop_text_is_sent_before_it_is_complete(model_stack: Stack) -> None:
    """CASES 6."""
    body = {"prompt": "1", **force(ONE), "stop": ["11111"], "max_tokens": 50}
    answer = await ask_every_way(model_stack.coordinator, body, MODEL_MODES)
    assert (answer.text, answer.finish_reason) == ("", "stop")
    assert answer.num_completion_tokens == 5


async def test_the_beginning_of_a_stop_text_is_sent_when_the_answer_ends_there(
    model_stack: Stack,
) -> None:
    """CASES 6."""
    body = {"prompt": "1", **force(ONE), "stop": ["11112"], "max_tokens": 6}
    answer = await ask_every_way(model_stack.coordinator, body, MODEL_MODES)
    assert (answer.text, answer.finish_reason) == ("111111", "length")


@pytest.mark.parametrize("front_end", [FrontEnd.HTTP_STREAM, FrontEnd.GRPC])
@pytest.mark.parametrize("speculation", [OFF, *MODEL_MODES], ids=str)
async def test_no_more_is_held_back_than_may_begin_a_stop_text(
    model_stack: Stack, speculation: Body, front_end: FrontEnd
) -> None:
    """CASES 6."""
    body = {"prompt": "1", **force(ONE), "stop": ["10"], "max_tokens": 9}
    answer = await ask(model_stack.coordinator, {**body, "speculation": speculation}, front_end)
    assert (answer.text, answer.finish_reason) == ("1" * 9, "length")
    num_tokens = num_characters = 0
    for part in answer.parts:
        num_tokens += len(part.token_ids)
        num_characters += len(part.text)
        assert num_tokens - 1 <= num_characters <= num_tokens


@pytest.mark.parametrize("stop", ["x", ["x"], [], None])
async def test_every_form_of_the_stop_field_is_understood(
    table_stack: Stack, stop: str | list[str] | None
) -> None:
    """CASES 7."""
    body = {"prompt": "stop", **force(ord("x")), "max_tokens": 4}
    answer = await ask_every_way(table_stack.coordinator, {**body, "stop": stop})
    absent = await ask(table_stack.coordinator, body)
    assert absent.text == "xxxx"
    assert answer.text == ("" if stop else "xxxx")


@pytest.mark.parametrize("stop", [[""], "", ["a", "b", "c", "d", "e"]])
async def test_stop_fields_that_cannot_work_are_refused_by_name(
    table_stack: Stack, stop: str | list[str]
) -> None:
    """CASES 7."""
    body = {"prompt": "stop", "stop": stop, "max_tokens": 4}
    response = await post(table_stack.coordinator, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stop"


async def test_a_stop_text_that_spans_two_tokens_is_found(model_stack: Stack) -> None:
    """CASES 7."""
    body = {"prompt": SMILES, **ONLY_SMILES, "max_tokens": 12}
    coordinator = model_stack.coordinator
    free = await ask_every_way(coordinator, body, MODEL_MODES)
    assert free.text == "🙂" * 6
    stopped = await ask_every_way(coordinator, {**body, "stop": "🙂"}, MODEL_MODES)
    assert (stopped.text, stopped.token_ids) == ("", (HALF_SMILE, OTHER_HALF))
    later = await ask_every_way(coordinator, {**body, "stop": ["🙂🙂🙂"]}, MODEL_MODES)
    assert (later.text, later.num_completion_tokens, later.finish_reason) == ("", 6, "stop")
