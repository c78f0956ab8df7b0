"""Log-probabilities of the default model, as users of other engines met them, and re-scored."""

from typing import Any

import pytest
import torch
from answers import OFF, Body, drafts, post
from cases import HALF_SMILE, MODEL_MODES, ONE, force
from processes import Stack

from paceline.engine.default_model import DEFAULT_MODEL
from paceline.engine.loading import load_model

pytestmark = pytest.mark.timeout(900)

NUM_TOP = 2


async def choice_of(stack: Stack, body: Body) -> dict[str, Any]:
    response = await post(stack.coordinator, {**body, "return_token_ids": True})
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


@pytest.mark.parametrize("speculation", [OFF, *MODEL_MODES], ids=str)
async def test_a_stop_inside_a_block_cuts_all_arrays_alike(
    model_stack: Stack, speculation: Body
) -> None:
    """CASES 4."""
    body = {"prompt": "11111", **force(ONE), "stop": ["111"], "max_tokens": 5, "logprobs": 2}
    choice = await choice_of(model_stack, {**body, "speculation": speculation})
    assert (choice["text"], choice["token_ids"]) == ("", [ONE] * 3)
    assert {name: len(values) for name, values in choice["logprobs"].items()} == {
        "tokens": 3,
        "token_logprobs": 3,
        "top_logprobs": 3,
        "text_offset": 3,
    }


@pytest.mark.parametrize("num_drafts", [0, 3])
async def test_there_are_as_many_as_tokens_wherever_the_limit_cuts_a_block(
    table_stack: Stack, num_drafts: int
) -> None:
    """CASES 5."""
    speculation = drafts("self", num_drafts) if num_drafts else OFF
    body = {"prompt": "to be or not to be", "temperature": 0, "ignore_eos": True, "logprobs": 1}
    longest = await choice_of(table_stack, {**body, "max_tokens": 9, "speculation": OFF})
    for max_tokens in range(1, 10):
        choice = await choice_of(
            table_stack, {**body, "max_tokens": max_tokens, "speculation": speculation}
        )
        for name, values in choice["logprobs"].items():
            assert values == longest["logprobs"][name][:max_tokens]


async def test_half_a_character_keeps_its_own_bytes(model_stack: Stack) -> None:
    """CASES 9."""
    messages = [{"role": "user", "content": "smile"}]
    body = {**force(HALF_SMILE), "max_tokens": 3, "logprobs": True, "top_logprobs": 1}
    choice = await choice_of(model_stack, {**body, "messages": messages})
    content = choice["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == [[240, 159]] * 3
    assert [entry["token"] for entry in content] == ["\\xf0\\x9f"] * 3


@pytest.mark.parametrize("speculation", [OFF, *MODEL_MODES], ids=str)
async def test_an_echoed_prompt_has_the_same_ones_whatever_is_drafted(
    model_stack: Stack, speculation: Body
) -> None:
    """CASES 10."""
    body = {"prompt": "A B C D A B C D A B", "temperature": 0, "echo": True, "logprobs": 1}
    body |= {"max_tokens": 4}
    plain = await choice_of(model_stack, {**body, "speculation": OFF})
    choice = await choice_of(model_stack, {**body, "speculation": speculation})
    assert choice == plain
    assert choice["text"].startswith("A B C D A B C D A B")
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert None not in choice["logprobs"]["token_logprobs"][1:]


async def test_reading_prompt_and_answer_again_gives_the_same_numbers(
    model_stack: Stack,
) -> None:
    """By the same target in one pass, bit for bit, and by transformers to a thousandth."""
    prompt = [1, 504, 3575, 282, 4649, 314]
    settings = {"temperature": 0.9, "top_p": 0.9, "frequency_penalty": 0.3, "seed": 5}
    body = {"prompt": prompt, "max_tokens": 32, "logprobs": NUM_TOP, **settings}
    module = load_model(DEFAULT_MODEL, dtype="float32", device="cpu").module
    for speculation in (drafts("suffix", 4), drafts("draft-model", 4)):
        choice = await choice_of(model_stack, {**body, "speculation": speculation})
        text = [*prompt, *choice["token_ids"]]
        given = choice["logprobs"]
        again = await choice_of(
            model_stack,
            {"prompt": text, "echo": True, "max_tokens": 0, "logprobs": NUM_TOP},
        )
        for name in ("token_logprobs", "top_logprobs", "tokens"):
            assert again["logprobs"][name][len(prompt) :] == given[name]
        with torch.inference_mode():
            rows = module(torch.tensor([text])).logits[0].log_softmax(-1)
        expected = [float(rows[index - 1, id]) for index, id in enumerate(text) if index]
        assert again["logprobs"]["token_logprobs"][1:] == pytest.approx(expected, abs=1e-3)
        tops = rows[len(prompt) - 1 : -1].topk(NUM_TOP).values.tolist()
        found = [sorted(top.values(), reverse=True)[:NUM_TOP] for top in given["top_logprobs"]]
        assert found == [pytest.approx(top, abs=1e-3) for top in tops]
