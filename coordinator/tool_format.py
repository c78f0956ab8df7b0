"""How tools, calls and results stand in a prompt, and calls in an answer: the Hermes format.

A call is `<tool_call>`, a line with {"name": …, "arguments": …}, `</tool_call>` (Nous Research,
Hermes Function Calling; Qwen and many others were trained on it). Templates that can show tools
write it themselves. For a template that cannot, tools become a part of the system's turn, calls the
text of the assistant and results a turn of the user, as Qwen's template has it: a model that was
not trained for tools has then at least read of them.
"""

import json
from collections.abc import Sequence
from typing import Any

from coordinator.requests import ChatMessage
from coordinator.tools import Tool, ToolCall

CALL_BEGIN = "<tool_call>"
CALL_END = "</tool_call>"

_OTHER_FORMAT = "<function="
"""Templates that write calls as XML use the same marks."""


def is_supported(template_source: str) -> bool:
    """Whether a template that shows tools asks for calls in this format."""
    return CALL_BEGIN in template_source and _OTHER_FORMAT not in template_source


def tool_definition(tool: Tool) -> dict[str, Any]:
    """A tool as templates know it, by the convention of transformers."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    return {"type": "function", "function": {**function, "parameters": json.loads(tool.parameters)}}


def as_plain_turns(messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
    """The conversation without tools, calls and results but for the text of its turns."""
    turns: list[ChatMessage] = []
    if tools:
        has_system = bool(messages) and messages[0].role == "system"
        before = f"{messages[0].content}\n\n" if has_system else ""
        turns.append(ChatMessage("system", before + _tools_text(tools)))
        messages = messages[1:] if has_system else messages
    previous = ""
    for message in messages:
        if message.role == "tool":
            text = f"<tool_response>\n{message.content}\n</tool_response>"
            # Results stand together: many templates want user and assistant to alternate.
            if previous == "tool":
                text = f"{turns.pop().content}\n{text}"
            turns.append(ChatMessage("user", text))
        else:
            parts = [message.content, *map(_call_text, message.tool_calls)]
            turns.append(ChatMessage(message.role, "\n".join(filter(None, parts))))
        previous = message.role
    return turns


def _call_text(call: ToolCall) -> str:
    return f"{CALL_BEGIN}\n{_call_json(call.name, call.arguments)}\n{CALL_END}"


def _call_json(name: str, arguments: str) -> str:
    return f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'


def _tools_text(tools: Sequence[Tool]) -> str:
    shown = "\n".join(json.dumps(tool_definition(tool), ensure_ascii=False) for tool in tools)
    example = _call_json("<function-name>", "<arguments as a JSON object>")
    return (
        "You may call functions to help with the user's request. These are their signatures:\n"
        f"<tools>\n{shown}\n</tools>\n"
        f"To call one, answer with\n{CALL_BEGIN}\n{example}\n{CALL_END}"
    )
