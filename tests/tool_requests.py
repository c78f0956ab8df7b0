"""Requests with tools to a service of the table model."""

from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[a-z]{1,12}$"},
        "unit": {"$ref": "#/$defs/unit"},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["celsius", "fahrenheit"]}},
}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Tells.", "parameters": SCHEMA},
}
NOW: Any = {"type": "function", "function": {"name": "now"}}
MESSAGES: Any = [{"role": "user", "content": "the rain in"}]
ASKED: Any = {
    "model": "table:7",
    "messages": MESSAGES,
    "temperature": 1.0,
    "seed": 3,
    "max_tokens": 400,
    "tools": [WEATHER, NOW],
}
ONE: Any = {**ASKED, "parallel_tool_calls": False}
