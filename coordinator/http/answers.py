"""Answers in the words of OpenAI's API, in one piece.

Knows the shapes, not how they travel; `coordinator.http.chunks` cuts the same into pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.http.logprobs import chat_logprobs, completion_logprobs
from coordinator.requests import FinishReason, Generation, GenerationStep, SpeculativeStats
from coordinator.scored_tokens import ScoredToken
from coordinator.tools import ToolCallDelta


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
    echo: bool = False

    def whole(self, steps: list[GenerationStep]) -> dict[str, Any]:
        """The answer in one piece, out of all its steps."""
        choices = [
            self._choice(index, [step for step in steps if step.choice == index])
            for index in range(self.generation.request.n)
        ]
        return {
            **self.head(self.api.answer_object),
            **self.with_prompt_token_ids(choices),
            "usage": self.usage(),
            "metrics": self.metrics(),
        }

    def _choice(self, index: int, steps: list[GenerationStep]) -> dict[str, Any]:
        text = self.echoed_text + "".join(step.text for step in steps)
        logprobs = self.logprobs([scored for step in steps for scored in step.logprobs], self.echo)
        choice = {"index": index, "logprobs": logprobs, **finish(steps[-1].finish_reason)}
        if self.api.is_chat:
            choice["message"] = _message(text, [d for step in steps for d in step.tool_calls])
        else:
            choice["text"] = text
        if self.return_token_ids:
            choice["token_ids"] = [token_id for step in steps for token_id in step.token_ids]
        return choice

    @property
    def echoed_text(self) -> str:
        """What every choice begins with: the prompt if it is wanted, else nothing."""
        return self.generation.prompt_text if self.echo else ""

    def logprobs(
        self, tokens: Sequence[ScoredToken], with_prompt: bool = False
    ) -> dict[str, Any] | None:
        """The `logprobs` of a choice or a part of one; None when none are wanted."""
        if self.generation.request.num_logprobs is None:
            return None
        if self.api.is_chat:
            return chat_logprobs(tokens)
        prompt = self.generation.prompt_logprobs if with_prompt else ()
        return completion_logprobs(prompt, tokens, len(self.echoed_text))

    def with_prompt_token_ids(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Choices with the prompt's ids, if ids are wanted; where they go is vLLM's way."""
        if not self.return_token_ids:
            return {"choices": choices}
        prompt_token_ids = list(self.generation.prompt_token_ids)
        if not self.api.is_chat:
            choices = [{**choice, "prompt_token_ids": prompt_token_ids} for choice in choices]
        return {"choices": choices, "prompt_token_ids": prompt_token_ids}

    def head(self, kind: str) -> dict[str, Any]:
        """What every answer and chunk begins with."""
        return {
            "id": self.api.id_prefix + self.generation.request.request_id,
            "object": kind,
            "created": self.generation.created,
            "model": self.model,
            "system_fingerprint": self.generation.system_fingerprint,
        }

    def usage(self) -> dict[str, Any]:
        """Tokens; the prompt counts once, however many choices there are."""
        num_prompt = len(self.generation.prompt_token_ids)
        num_completion = self.generation.num_committed_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_completion,
            "total_tokens": num_prompt + num_completion,
        }
        if self.generation.request.prediction:
            usage["completion_tokens_details"] = {
                "accepted_prediction_tokens": self.generation.num_accepted_prediction_tokens,
                "rejected_prediction_tokens": self.generation.num_rejected_prediction_tokens,
            }
        return usage

    def metrics(self) -> dict[str, Any]:
        """What speculation did."""
        speculation = self.generation.request.speculation
        wanted = speculation.num_speculative_tokens or 0
        return {
            "speculative_decoding": speculative_decoding(self.generation.stats, wanted),
            "acceptance_rule": speculation.acceptance_rule,
            "numerics_changed": self.generation.numerics_changed,
            "varies_with_width": self.generation.varies_with_width,
        }


def _message(text: str, deltas: list[ToolCallDelta]) -> dict[str, Any]:
    """An assistant's turn; one that only calls tools has no content."""
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if not deltas:
        return message
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        if delta.name:
            calls[delta.number] = tool_call(delta)
        else:
            calls[delta.number]["function"]["arguments"] += delta.arguments
    return {**message, "content": text or None, "tool_calls": list(calls.values())}


def tool_call(delta: ToolCallDelta) -> dict[str, Any]:
    """A call, or what is new of one."""
    if not delta.name:
        return {"function": {"arguments": delta.arguments}}
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"id": delta.id, "type": "function", "function": function}


def speculative_decoding(stats: SpeculativeStats, num_spec_tokens: int = 0) -> dict[str, Any]:
    """vLLM's fields of that name, what a pass of the target brought, and what drafts cost.

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
        "num_proposed_tokens": stats.num_proposed_tokens,
        "draft_compute_ms": stats.draft_compute_us / 1000,
        "draft_failures": dict(stats.draft_failures),
    }


def finish(reason: FinishReason | None) -> dict[str, Any]:
    """The finish reason of a choice, or of a piece of it."""
    return {"finish_reason": None if reason is None else reason.value}
