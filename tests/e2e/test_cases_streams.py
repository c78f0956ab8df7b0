"""Characters, the stream protocol and degenerate prompts, as users of other engines met them."""

import asyncio
import itertools
import json

import pytest
from answers import OFF, Body, FrontEnd, ask, check_equal, drafts, events, post
from cases import (
    HALF_SMILE,
    MODEL_MODES,
    ONE,
    ONLY_SMILES,
    REPLACEMENT,
    SMILES,
    ask_every_way,
    force,
)
from processes import Stack
from real_tokenizers import smollm2_tokenizer

pytestmark = pytest.mark.timeout(900)


async def test_half_characters_at_the_end_are_replaced_and_not_lost(model_stack: Stack) -> None:
    """CASES 25 a."""
    body = {"prompt": "🙂", **force(HALF_SMILE), "max_tokens": 3}
    answer = await ask_every_way(model_stack.coordinator, body, MODEL_MODES)
    assert answer.text == 3 * REPLACEMENT


async def test_an_answer_that_is_cut_inside_a_character_says_so_at_its_end_only(
    model_stack: Stack,
) -> None:
    """CASES 25 d."""
    body = {"prompt": SMILES, **ONLY_SMILES, "max_tokens": 5}
    answer = await ask_every_way(model_stack.coordinator, body, MODEL_MODES)
    assert answer.text == "🙂🙂" + REPLACEMENT


@pytest.mark.parametrize(
    "prompt", [SMILES, "e\u0301é" * 6, "🇩🇪🇫🇷" * 4, "👩‍🚀" * 4, "東京안녕" * 3], ids=ascii
)
async def test_text_is_the_decoded_ids_wherever_blocks_cut_a_character(
    model_stack: Stack, prompt: str
) -> None:
    """CASES 25 b and c."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 10}
    # An odd number of drafts cuts pairs.
    modes = (OFF, drafts("suffix", 3), drafts("draft-model", 4), drafts("hybrid", 5))
    ways = [*itertools.product(modes, FrontEnd)]
    answers = await asyncio.gather(
        *(ask(model_stack.coordinator, {**body, "speculation": mode}, end) for mode, end in ways)
    )
    whole = smollm2_tokenizer().decode(answers[0].token_ids)
    assert answers[0].text == whole
    for (mode, front_end), answer in zip(ways, answers, strict=True):
        check_equal(answer, answers[0], f"{mode} over {front_end.value}")
        before_last = "".join(part.text for part in answer.parts[:-1])
        assert whole.startswith(before_last), "text was sent that had to be taken back"


@pytest.mark.parametrize(
    "prompt", [{"prompt": "Once"}, {"messages": [{"role": "user", "content": "Hi"}]}]
)
@pytest.mark.parametrize("speculation", [OFF, drafts("draft-model", 4)], ids=str)
async def test_a_stream_ends_once_with_reason_usage_and_done(
    table_stack: Stack, prompt: Body, speculation: Body
) -> None:
    """CASES 26."""
    body = {**prompt, "temperature": 0, "max_tokens": 30, "ignore_eos": True}
    body["speculation"] = speculation
    request = {**body, "stream_options": {"include_usage": True}}
    received = [event async for event in events(table_stack.coordinator, request)]
    assert received.pop() == "[DONE]"
    *chunks, last = map(json.loads, received)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 30
    assert all(chunk["usage"] is None for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == "length"
    if "messages" in body:
        assert ["role" in choice["delta"] for choice in choices] == [
            index == 0 for index in range(len(choices))
        ]
    text = "".join(
        choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        for choice in choices
    )
    assert text == (await ask(table_stack.coordinator, body)).text


# G. Context limits, degenerate prompts


@pytest.mark.parametrize(
    "prompt",
    [
        {"prompt": ""},
        {"prompt": []},
        {"prompt": [1]},
        {"prompt": "A"},
        {"prompt": "<|im_end|>", "ignore_eos": True},
        {"prompt": [2]},
        {"messages": [{"role": "user", "content": ""}]},
        {"messages": [{"role": "user", "content": " "}]},
        {"messages": []},
    ],
    ids=str,
)
async def test_a_degenerate_prompt_is_refused_or_answered_as_without_drafts(
    model_stack: Stack, prompt: Body
) -> None:
    """CASES 31."""
    coordinator = model_stack.coordinator
    body = {**prompt, "temperature": 0, "max_tokens": 4}
    response = await post(coordinator, body)
    if response.status_code == 400:
        assert response.json()["error"]["param"] in ("prompt", "messages")
    else:
        assert response.status_code == 200
        await ask_every_way(coordinator, body, modes=MODEL_MODES[2:])
    usual = {"prompt": "A B C D A B C", **force(ONE), "max_tokens": 4}
    assert (await ask(coordinator, usual)).text == "1111"


@pytest.mark.parametrize("prompt", ["", [], [256], "a", "<|eos|>"])
async def test_a_prompt_shorter_than_what_is_looked_up_is_no_trouble(
    table_stack: Stack, prompt: str | list[int]
) -> None:
    """CASES 31."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 12, "ignore_eos": True}
    if prompt == []:
        assert (await post(table_stack.coordinator, body)).status_code == 400
    else:
        await ask_every_way(table_stack.coordinator, body)


@pytest.mark.parametrize("too_long", [{"max_tokens": 5000}, {"prompt": "a" * 4096}], ids=str)
async def test_what_is_longer_than_the_context_is_refused_with_the_limit(
    table_stack: Stack, too_long: Body
) -> None:
    body = {"prompt": "Once", "max_tokens": 8, **too_long}
    response = await post(table_stack.coordinator, body)
    assert response.status_code == 400
    assert "4096" in response.json()["error"]["message"]
