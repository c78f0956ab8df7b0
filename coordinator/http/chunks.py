"""Answers in the words of OpenAI's API, in chunks.

Knows the shapes, not how they travel. Chunks of one request share id, time and model; those of its
choices come interleaved. The role comes in the first of a choice only, its finish reason in one
only, usage (if wanted) in one more that has no choices, and what speculation did in the last.
"""

from typing import Any

from coordinator.http.answers import Answer, finish, tool_call
from coordinator.requests import GenerationStep


class Chunks:
    """The chunks of one answer, in the order in which they are asked for."""

    def __init__(self, answer: Answer, include_usage: bool) -> None:
        self._answer = answer
        self._include_usage = include_usage
        self._num_unfinished = answer.generation.request.n
        self._begun: set[int] = set()
        self._is_first = True

    def opening(self, choice: int) -> dict[str, Any] | None:
        """The first chunk of a choice: in a chat who speaks, else the prompt if it is echoed."""
        if choice in self._begun or not (self._answer.api.is_chat or self._answer.echo):
            return None
        self._begun.add(choice)
        if self._answer.api.is_chat:
            return self._chunk({"index": choice, "delta": {"role": "assistant", "content": ""}})
        logprobs = self._answer.logprobs((), with_prompt=True)
        return self._chunk(
            {"index": choice, "text": self._answer.echoed_text, "logprobs": logprobs}
        )

    def of(self, step: GenerationStep) -> dict[str, Any] | None:
        """What a step adds; None when there is nothing to show of it yet."""
        wants_token_ids = self._answer.return_token_ids
        is_empty = not (step.text or step.tool_calls or step.logprobs)
        if is_empty and not (step.finish_reason or wants_token_ids):
            return None
        content: dict[str, Any] = {"text": step.text}
        if self._answer.api.is_chat:
            content = {"delta": _delta(step)}
        if step.logprobs:
            content["logprobs"] = self._answer.logprobs(step.logprobs)
        chunk = self._chunk({"index": step.choice, **content}, step)
        self._num_unfinished -= step.finish_reason is not None
        if self._num_unfinished == 0 and not self._include_usage:
            chunk["metrics"] = self._answer.metrics()
        return chunk

    def usage(self) -> dict[str, Any] | None:
        """The last chunk of a stream that was asked to count tokens."""
        if not self._include_usage:
            return None
        return {
            **self._answer.head(self._answer.api.chunk_object),
            "choices": [],
            "usage": self._answer.usage(),
            "metrics": self._answer.metrics(),
        }

    def _chunk(self, choice: dict[str, Any], step: GenerationStep | None = None) -> dict[str, Any]:
        choice = {"logprobs": None, **choice, **finish(step.finish_reason if step else None)}
        if self._answer.return_token_ids:
            choice["token_ids"] = list(step.token_ids if step else ())
        is_first, self._is_first = self._is_first, False
        return {
            **self._answer.head(self._answer.api.chunk_object),
            **(self._answer.with_prompt_token_ids([choice]) if is_first else {"choices": [choice]}),
            **({"usage": None} if self._include_usage else {}),
        }


def _delta(step: GenerationStep) -> dict[str, Any]:
    """What a step adds to an assistant's turn."""
    delta: dict[str, Any] = {"content": step.text} if step.text else {}
    if step.tool_calls:
        delta["tool_calls"] = [{"index": d.number, **tool_call(d)} for d in step.tool_calls]
    return delta
