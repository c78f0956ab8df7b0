"""Answers in the words of OpenAI's API, whole and in chunks.

Knows the shapes, not how they travel. Chunks of one answer share id, time and model; the role comes
in the first only, the finish reason in one only, usage (if wanted) in one more that has no choices,
and what speculation did in the last.
"""

from dataclasses import dataclass
from typing import Any

from coordinator.requests import FinishReason, Generation, GenerationStep, SpeculativeStats


@dataclass(frozen=True, slots=True)
class Api:
    """What the two endpoints call the same things."""

    id_prefix: str
    answer_object: str
    chunk_object: str
    is_chat: bool


CHAT = Api("chatcmpl-", "chat.completion", "chat.completion.chunk", True)
COMPLETION = Api("cmpl-", "text_completion", "text_completion", False)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request."""

    api: Api
    generation: Generation
    model: str
    return_token_ids: bool
    include_usage: bool = False

    def whole(self, steps: list[GenerationStep]) -> dict[str, Any]:
        """The answer in one piece, out of all its steps."""
        text = "".join(step.text for step in steps)
        choice: dict[str, Any] = {"index": 0, "logprobs": None, **_finish(steps[-1].finish_reason)}
        if self.api.is_chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        token_ids = [token_id for step in steps for token_id in step.token_ids]
        return {
            **self._head(self.api.answer_object),
            **self._with_token_ids(choice, token_ids, is_first=True),
            "usage": self._usage(),
            "metrics": self._metrics(),
        }

    def opening_chunk(self) -> dict[str, Any]:
        """The first chunk of a chat: who speaks."""
        return self._chunk({"delta": {"role": "assistant", "content": ""}}, None, (), True)

    def chunk(self, step: GenerationStep, is_first: bool) -> dict[str, Any]:
        """What one step adds. `is_first`: no chunk has gone out yet."""
        if self.api.is_chat:
            choice: dict[str, Any] = {"delta": {"content": step.text} if step.text else {}}
        else:
            choice = {"text": step.text}
        chunk = self._chunk(choice, step.finish_reason, step.token_ids, is_first)
        if step.finish_reason is not None and not self.include_usage:
            chunk["metrics"] = self._metrics()
        return chunk

    def usage_chunk(self) -> dict[str, Any]:
        """The last chunk of a stream that was asked to count tokens."""
        return {
            **self._head(self.api.chunk_object),
            "choices": [],
            "usage": self._usage(),
            "metrics": self._metrics(),
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.api.id_prefix + self.generation.request.request_id,
            "object": kind,
            "created": self.generation.created,
            "model": self.model,
        }

    def _chunk(
        self,
        choice: dict[str, Any],
        finish_reason: FinishReason | None,
        token_ids: tuple[int, ...],
        is_first: bool,
    ) -> dict[str, Any]:
        choice = {"index": 0, **choice, "logprobs": None, **_finish(finish_reason)}
        return {
            **self._head(self.api.chunk_object),
            **self._with_token_ids(choice, list(token_ids), is_first),
            **({"usage": None} if self.include_usage else {}),
        }

    def _with_token_ids(
        self, choice: dict[str, Any], token_ids: list[int], is_first: bool
    ) -> dict[str, Any]:
        """Choices with ids if they are wanted; where the prompt's go is vLLM's way."""
        if not self.return_token_ids:
            return {"choices": [choice]}
        choice["token_ids"] = token_ids
        if not is_first:
            return {"choices": [choice]}
        prompt_token_ids = list(self.generation.prompt_token_ids)
        if not self.api.is_chat:
            choice["prompt_token_ids"] = prompt_token_ids
        return {"choices": [choice], "prompt_token_ids": prompt_token_ids}

    def _usage(self) -> dict[str, int]:
        num_prompt = len(self.generation.prompt_token_ids)
        num_completion = self.generation.num_committed_tokens
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_completion,
            "total_tokens": num_prompt + num_completion,
        }

    def _metrics(self) -> dict[str, Any]:
        speculation = self.generation.request.speculation
        wanted = speculation.num_speculative_tokens or 0
        return {
            "speculative_decoding": speculative_decoding(self.generation.stats, wanted),
            "acceptance_rule": speculation.acceptance_rule,
            "numerics_changed": self.generation.numerics_changed,
        }


def speculative_decoding(stats: SpeculativeStats, num_spec_tokens: int = 0) -> dict[str, Any]:
    """vLLM's fields of that name, and how much a pass of the target brought.

    `num_spec_tokens` is what was asked for, or the most drafts of any round if that is more; the
    histogram has a place for each number up to it.
    """
    histogram = list(stats.acceptance_histogram)
    histogram += [0] * (num_spec_tokens + 1 - len(histogram))
    return {
        "mean_acceptance_length": stats.mean_acceptance_length,
        "draft_acceptance_rate": stats.draft_acceptance_rate,
        "acceptance_histogram": histogram,
        "num_spec_steps": stats.num_spec_steps,
        "num_accepted_draft_tokens": stats.num_accepted_draft_tokens,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_spec_tokens": len(histogram) - 1,
        "num_target_passes": stats.num_target_passes,
        "num_committed_tokens": stats.num_committed_tokens,
        "tokens_per_target_pass": stats.tokens_per_target_pass,
    }


def _finish(reason: FinishReason | None) -> dict[str, str | None]:
    return {"finish_reason": None if reason is None else reason.value}
