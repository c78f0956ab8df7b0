"""Tools that a model may call, and its calls, as plain values; words as in the OpenAI API."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

MAX_TOOLS = 128
"""Of one request, as OpenAI has it."""
NAME = r"^[A-Za-z0-9_-]{1,64}$"
"""What tools may be called."""
NO_PARAMETERS = '{"type": "object", "properties": {}, "additionalProperties": false}'
"""The schema of a tool that has no parameters."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str
    parameters: str
    """JSON schema of its arguments, as text."""
    is_strict: bool = False
    """Whether its arguments must meet the schema even where no call is required."""


class ToolChoice(Enum):
    """Whether an answer calls tools."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in a turn of the assistant."""

    id: str
    name: str
    arguments: str
    """A JSON object, as text."""


class ToolCallDelta(NamedTuple):
    """What is new of one call in an answer."""

    number: int
    """Which call of the answer, from 0."""
    id: str
    """Set in its first delta, like `name`; empty in the others."""
    name: str
    arguments: str
    """To be put behind those of the deltas before."""
