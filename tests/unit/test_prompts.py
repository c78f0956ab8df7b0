"""What a request is about: tokens that fit, and the text that they are."""

from dataclasses import replace
from typing import Any

import pytest
from real_tokenizers import table_tokenizer

from coordinator.prompts import encode_prediction, encode_prompt, prompt_text
from coordinator.requests import ChatMessage, GenerationRequest
from paceline.errors import InvalidRequest

VOCAB_SIZE = 261
BOS = 256
REQUEST = GenerationRequest("r-1", "Hello")


async def test_a_prompt_is_a_text_ids_or_a_conversation() -> None:
    tokenizer = table_tokenizer()
    assert await encode_prompt(tokenizer, REQUEST, 4096) == (BOS, *b"Hello")
    assert await encode_prompt(tokenizer, replace(REQUEST, prompt=(1, 2)), 4096) == (1, 2)
    chat = (ChatMessage("user", "Hi"),)
    token_ids = await encode_prompt(tokenizer, replace(REQUEST, prompt=chat), 4096)
    assert (token_ids[0], *token_ids[2:4]) == (BOS, *b"Hi")


@pytest.mark.parametrize("prompt", [(), (1, VOCAB_SIZE), (-1,)])
async def test_a_prompt_without_tokens_or_with_others_is_refused(prompt: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match="prompt"):
        await encode_prompt(table_tokenizer(), replace(REQUEST, prompt=prompt), 4096)


@pytest.mark.parametrize(
    "prompt", ["a" * 10**6, (ChatMessage("user", "a" * 10**6),), (ChatMessage("user", ""),) * 10**5]
)
async def test_a_prompt_that_cannot_fit_is_refused_unread(
    prompt: str | tuple[ChatMessage, ...],
) -> None:
    with pytest.raises(InvalidRequest, match="characters, which no 4096 tokens can say"):
        await encode_prompt(table_tokenizer(), replace(REQUEST, prompt=prompt), 4096)


async def test_a_prediction_that_cannot_fit_is_refused_unread() -> None:
    request = replace(REQUEST, prediction="a" * 10**6)
    with pytest.raises(InvalidRequest, match="prediction: has 1000000 characters"):
        await encode_prediction(table_tokenizer(), request, 4096)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("Hello", "Hello"),
        ((BOS, *"né".encode()), "né"),
        ((ChatMessage("user", "Hi"),), ""),
    ],
)
async def test_a_prompt_is_echoed_as_it_was_written_or_as_its_tokens_spell_it(
    prompt: Any, text: str
) -> None:
    request = replace(REQUEST, prompt=prompt)
    token_ids = prompt if isinstance(prompt[0], int) else ()
    assert await prompt_text(table_tokenizer(), request, token_ids) == text
