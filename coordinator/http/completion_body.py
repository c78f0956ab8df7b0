"""The body of `POST /v1/completions`."""

from typing import Annotated

from pydantic import Field

from coordinator.admission import MAX_LOGPROBS
from coordinator.http.fields import PromptInput
from coordinator.http.generation_body import GenerationBody
from coordinator.requests import GenerationRequest

_DEFAULT_COMPLETION_TOKENS = 16
"""As OpenAI has it for `/v1/completions`; a chat goes on until it ends."""


class CompletionBody(GenerationBody):
    """The body of `POST /v1/completions`."""

    prompt: PromptInput
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool = False

    def to_request(self, new_id: str) -> GenerationRequest:
        """`new_id`: what it is called where the client has no name for it.

        Raises InvalidRequest when parameters contradict each other.
        """
        limit = _DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        prompt_logprobs = self.echo and self.logprobs is not None
        return self.with_prompt(new_id, self.prompt, limit, self.logprobs, prompt_logprobs)
