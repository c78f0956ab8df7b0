"""What a chat says about tools: the functions on offer, and which to call."""

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from coordinator.http.parsing import Strict
from coordinator.tools import NAME, NO_PARAMETERS, Tool, ToolChoice


class FunctionBody(Strict):
    """A function on offer."""

    name: Annotated[str, Field(pattern=NAME)]
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool = False


class ToolBody(Strict):
    """A tool on offer."""

    type: Literal["function"]
    function: FunctionBody

    def to_tool(self) -> Tool:
        """The tool as a plain value."""
        function = self.function
        schema = NO_PARAMETERS if function.parameters is None else json.dumps(function.parameters)
        return Tool(function.name, function.description, schema, function.strict)


def chosen_tool(value: object) -> tuple[ToolChoice, str]:
    """`tool_choice`: a word, or the function that must be called. With the name of that one."""
    match value:
        case "none" | "auto" | "required":
            return ToolChoice(value), ""
        case {"type": "function", "function": {"name": str(name), **more}, **others} if not (
            more or others
        ):
            return ToolChoice.REQUIRED, name
        case _:
            raise ValueError(
                'expected "none", "auto", "required" or '
                '{"type": "function", "function": {"name": …}}'
            )


ChosenTool = Annotated[
    tuple[ToolChoice, str],
    BeforeValidator(chosen_tool),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": [choice.value for choice in ToolChoice]},
                {
                    "type": "object",
                    "properties": {
                        "type": {"const": "function"},
                        "function": {
                            "type": "object",
                            "properties": {"name": {"type": "string"}},
                            "required": ["name"],
                            "additionalProperties": False,
                        },
                    },
                    "required": ["type", "function"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
