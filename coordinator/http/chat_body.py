"""The body of `POST /v1/chat/completions`."""

from dataclasses import replace
from typing import Annotated

from pydantic import FailFast, Field

from coordinator.admission import MAX_LOGPROBS
from coordinator.http.generation_body import GenerationBody
from coordinator.http.message_body import MessageBody
from coordinator.http.tool_bodies import ChosenTool, ToolBody
from coordinator.requests import GenerationRequest
from coordinator.tools import MAX_TOOLS, ToolChoice
from paceline.errors import InvalidRequest


class ChatCompletionBody(GenerationBody):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[MessageBody], FailFast(), Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: Annotated[list[ToolBody], FailFast(), Field(max_length=MAX_TOOLS)] = []
    tool_choice: ChosenTool = (ToolChoice.AUTO, "")
    parallel_tool_calls: bool = True
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0

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
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest(
                f"top_logprobs: is {self.top_logprobs}; only allowed together with logprobs: true",
                "top_logprobs",
            )
        messages = tuple(
            message.to_message(f"messages[{index}]") for index, message in enumerate(self.messages)
        )
        mode, name = self.tool_choice
        return replace(
            self.with_prompt(
                new_id,
                messages,
                limits.pop() if limits else None,
                self.top_logprobs if self.logprobs else None,
            ),
            tools=tuple(tool.to_tool() for tool in self.tools),
            tool_choice=mode,
            tool_name=name,
            parallel_tool_calls=self.parallel_tool_calls,
        )
