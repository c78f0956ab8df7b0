"""What a request is about, in tokens, and as the text that it is.

Tokenizing blocks for as long as a text is long, so it is left to a thread.
"""

import asyncio
from collections.abc import Sequence
from typing import TypeGuard

from coordinator.requests import ChatMessage, GenerationRequest
from coordinator.tokenizer import Tokenizer, check_token_ids
from paceline.errors import InvalidRequest


async def encode_prompt(
    tokenizer: Tokenizer, request: GenerationRequest, max_model_len: int
) -> tuple[int, ...]:
    """The prompt in tokens, off the event loop; raises `InvalidRequest`."""
    prompt = request.prompt
    token_ids: tuple[int, ...]
    if request.tools and not is_chat(prompt):
        raise InvalidRequest("tools: are set beside a prompt; expected a conversation", "tools")
    if isinstance(prompt, str):
        token_ids = await asyncio.to_thread(tokenizer.encode, prompt, max_model_len)
    elif is_chat(prompt):
        token_ids = await asyncio.to_thread(
            tokenizer.encode_chat, prompt, max_model_len, request.offered_tools
        )
    else:
        token_ids = tuple(item for item in prompt if isinstance(item, int))
        await asyncio.to_thread(check_token_ids, "prompt", token_ids, tokenizer.vocab_size)
    if not token_ids:
        raise InvalidRequest("prompt: has no tokens; expected at least one", "prompt")
    return token_ids


async def encode_prediction(
    tokenizer: Tokenizer, request: GenerationRequest, max_model_len: int
) -> tuple[int, ...]:
    """The prediction in tokens, off the event loop; raises `InvalidRequest`."""
    if not request.prediction:
        return ()
    return await asyncio.to_thread(tokenizer.encode_prediction, request.prediction, max_model_len)


async def prompt_text(
    tokenizer: Tokenizer, request: GenerationRequest, token_ids: Sequence[int]
) -> str:
    """The prompt as its client wrote it, or as its tokens spell it; empty for a chat."""
    if isinstance(request.prompt, str):
        return request.prompt
    if is_chat(request.prompt):
        return ""
    return await asyncio.to_thread(tokenizer.decode, token_ids)


def is_chat(
    prompt: str | tuple[int, ...] | tuple[ChatMessage, ...],
) -> TypeGuard[tuple[ChatMessage, ...]]:
    """Whether a prompt is a conversation."""
    return bool(prompt) and isinstance(prompt[0], ChatMessage)
