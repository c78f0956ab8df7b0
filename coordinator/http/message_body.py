"""The turns of a chat: texts, calls of tools, and their results."""

import json
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, FailFast, Field, JsonValue, WithJsonSchema

from coordinator.http.fields import ContentText
from coordinator.http.parsing import Strict
from coordinator.requests import ChatMessage
from coordinator.tools import ToolCall
from paceline.errors import InvalidRequest


def call_arguments(value: object) -> str:
    """`arguments` of an earlier call: the text of a JSON object, or nothing at all for none."""
    text = value or "{}"
    try:
        arguments = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        arguments = None
    if not isinstance(text, str) or not isinstance(arguments, dict):
        raise ValueError("expected the text of a JSON object")
    return text


class CalledFunctionBody(Strict):
    """What an earlier call called."""

    name: Annotated[str, Field(min_length=1)]
    arguments: Annotated[
        str,
        BeforeValidator(call_arguments),
        WithJsonSchema({"type": "string", "contentMediaType": "application/json"}),
    ]


_SAID: dict[str, JsonValue] = {"type": ["string", "array"]}
_NOTHING: dict[str, JsonValue] = {"type": "null"}
_CALL_ID: dict[str, JsonValue] = {"type": "string", "minLength": 1}


def _of_roles(*roles: str, **fields: dict[str, JsonValue]) -> JsonValue:
    """The schema of a turn of these roles; what may be null may be missing."""
    properties: dict[str, JsonValue] = {"role": {"enum": [*roles]}, **fields}
    required: list[JsonValue] = [name for name, schema in fields.items() if schema != _NOTHING]
    return {"properties": properties, "required": required}


class ToolCallBody(Strict):
    """An earlier call."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunctionBody

    def to_call(self) -> ToolCall:
        """The call as a plain value."""
        return ToolCall(self.id, self.function.name, self.function.arguments)


class MessageBody(Strict):
    """One turn of a conversation."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                _of_roles(
                    "system",
                    "developer",
                    "user",
                    content=_SAID,
                    tool_calls=_NOTHING,
                    tool_call_id=_NOTHING,
                ),
                _of_roles("assistant", content=_SAID, tool_call_id=_NOTHING),
                _of_roles("assistant", tool_calls={"minItems": 1}, tool_call_id=_NOTHING),
                _of_roles("tool", content=_SAID, tool_calls=_NOTHING, tool_call_id=_CALL_ID),
            ]
        }
    )

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: ContentText | None = None
    tool_calls: Annotated[list[ToolCallBody], FailFast()] = []
    tool_call_id: str = ""

    def to_message(self, field: str) -> ChatMessage:
        """The turn as a plain value; `field` is its name in messages.

        Raises InvalidRequest when something is missing or out of place for the role.
        """
        if self.tool_calls and self.role != "assistant":
            raise InvalidRequest(
                f"{field}.tool_calls: is set for the role {self.role!r}; expected it for an "
                "assistant only",
                f"{field}.tool_calls",
            )
        if self.tool_call_id and self.role != "tool":
            raise InvalidRequest(
                f"{field}.tool_call_id: is set for the role {self.role!r}; expected it for a tool "
                "only",
                f"{field}.tool_call_id",
            )
        if self.role == "tool" and not self.tool_call_id:
            name = f"{field}.tool_call_id"
            raise InvalidRequest(f"{name}: is missing", name)
        if self.content is None and not self.tool_calls:
            raise InvalidRequest(f"{field}.content: is missing", f"{field}.content")
        # `developer` is OpenAI's newer word for `system`.
        role = "system" if self.role == "developer" else self.role
        calls = tuple(call.to_call() for call in self.tool_calls)
        return ChatMessage(role, self.content or "", calls, self.tool_call_id)
