"""Log-probabilities in the words of OpenAI's two endpoints.

A token that is no whole text is written as OpenAI writes it: a chat has its bytes as escapes, the
older endpoint the same behind `bytes:`. So tokens that differ are told apart, in objects by token
too.
"""

from collections.abc import Sequence
from typing import Any

from coordinator.scored_tokens import LikelyToken, ScoredToken, SpelledToken


def chat_logprobs(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    """`logprobs` of a choice of a chat, or of a part of one."""
    content = [
        {
            **_chat_token(scored.token, scored.logprob),
            "top_logprobs": [_chat_token(likely.token, likely.logprob) for likely in scored.top],
        }
        for scored in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    prompt: Sequence[ScoredToken], tokens: Sequence[ScoredToken], prompt_length: int
) -> dict[str, Any]:
    """`logprobs` of a choice of a completion, or of a part of one.

    `prompt` are the tokens of a prompt that is echoed, `prompt_length` its number of characters.
    The token that was chosen is among the `top_logprobs` too, so there may be one more than asked.
    """
    everything = [*prompt, *tokens]
    return {
        "tokens": [_completion_name(scored.token) for scored in everything],
        "token_logprobs": [scored.logprob for scored in everything],
        "top_logprobs": [_by_name(scored) for scored in everything],
        "text_offset": [
            *(scored.text_offset for scored in prompt),
            *(prompt_length + scored.text_offset for scored in tokens),
        ],
    }


def _chat_token(token: SpelledToken, logprob: float | None) -> dict[str, Any]:
    return {
        "token": token.name if _is_text(token) else _escaped(token),
        "logprob": logprob,
        "bytes": None if token.bytes is None else list(token.bytes),
    }


def _by_name(scored: ScoredToken) -> dict[str, float] | None:
    """The likely tokens by name; of two with one name the likelier."""
    if scored.logprob is None:
        return None
    found: dict[str, float] = {}
    for likely in (*scored.top, LikelyToken(scored.token, scored.logprob)):
        found.setdefault(_completion_name(likely.token), likely.logprob)
    return found


def _completion_name(token: SpelledToken) -> str:
    return token.name if _is_text(token) else "bytes:" + _escaped(token)


def _is_text(token: SpelledToken) -> bool:
    return token.bytes is None or token.name.encode() == token.bytes


def _escaped(token: SpelledToken) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token.bytes or b"")
