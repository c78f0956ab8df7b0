"""The body of `POST /v1/chat/completions`."""

from typing import Annotated, Literal

from pydantic import FailFast, Field

from coordinator.http.fields import ContentText
from coordinator.http.generation_body import GenerationBody
from coordinator.http.parsing import Strict
from coordinator.requests import ChatMessage, GenerationRequest
from paceline.errors import InvalidRequest


class MessageBody(Strict):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: ContentText

    def to_message(self) -> ChatMessage:
        """`developer` is OpenAI's newer word for `system`."""
        role = "system" if self.role == "developer" else self.role
        return ChatMessage(role, self.content)


class ChatCompletionBody(GenerationBody):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[MessageBody], FailFast(), Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    def to_request(self, new_id: str) -> GenerationRequest:
        """`new_id`: what it is called where the client has no name for it.

        Raises InvalidRequest when parameters contradict each other.
        """
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise InvalidRequest(
                f"max_completion_tokens: is {self.max_completion_tokens} but max_tokens, its older "
                f"name, is {self.max_tokens}; expected one of them",
                "max_completion_tokens",
            )
        messages = tuple(message.to_message() for message in self.messages)
        return self.with_prompt(new_id, messages, limits.pop() if limits else None)
