"""Values that come in several forms, each brought into one. Raises ValueError for other forms."""

import json
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from coordinator.admission import MAX_STOP_LENGTH, MAX_STOPS

_MAX_SHOWN = 60


def stop_texts(value: object) -> tuple[str, ...]:
    """`stop`: a text or a list of a few."""
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ValueError("expected a text or a list of texts")
    if len(texts) > MAX_STOPS:
        raise ValueError(f"expected at most {MAX_STOPS} texts")
    if not all(0 < len(text) <= MAX_STOP_LENGTH for text in texts):
        raise ValueError(f"expected texts of 1 to {MAX_STOP_LENGTH} characters")
    return tuple(texts)


def logit_biases(value: object) -> tuple[tuple[int, float], ...]:
    """`logit_bias`: an object that gives token ids, written as texts, a value each."""
    if not isinstance(value, dict):
        raise ValueError("expected an object from token ids to numbers")
    biases = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise ValueError(f"expected token ids as keys, one is {shown(key)}")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise ValueError(f"expected values from -100 to 100, that of {key} is {shown(bias)}")
        biases[int(key)] = float(bias)
    return tuple(biases.items())


def prompt_input(value: object) -> str | tuple[int, ...]:
    """`prompt`: a text or token ids, by itself or as the only one of a list."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise ValueError(f"expected one prompt per request, got {len(value)}")
        value = value[0]
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("expected a text or a list of token ids")
    for index, item in enumerate(value):
        if isinstance(item, bool) or not isinstance(item, int):
            raise ValueError(f"expected token ids, number {index} is {shown(item)}")
    return tuple(value)


def content_text(value: object) -> str:
    """`content` of a message: a text, or text parts, which become lines (as vLLM has it)."""
    match value:
        case str(text):
            return text
        case [_, *_] as parts:
            return "\n".join(_part_text(index, part) for index, part in enumerate(parts))
        case _:
            raise ValueError("expected a text or a list of text parts")


def _part_text(index: int, part: object) -> str:
    match part:
        case {"type": "text", "text": str(text), **others} if not others:
            return text
        case {"type": str(kind)} if kind != "text":
            raise ValueError(f"expected text parts only, part {index} is of type {shown(kind)}")
        case _:
            raise ValueError(f'expected parts {{"type": "text", "text": …}}, part {index} differs')


def shown(value: object) -> str:
    """A value as JSON, cut to a length that fits into a message."""
    text = ""
    # In pieces: most of what is megabytes long is not looked at.
    for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        text += piece
        if len(text) > _MAX_SHOWN:
            break
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


_STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
StopTexts = Annotated[
    tuple[str, ...],
    BeforeValidator(stop_texts),
    WithJsonSchema({"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MAX_STOPS}]}),
]

LogitBiases = Annotated[
    tuple[tuple[int, float], ...],
    BeforeValidator(logit_biases),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": r"^[0-9]{1,10}$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        }
    ),
]

_PROMPT = [
    {"type": "string"},
    {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
]
PromptInput = Annotated[
    str | tuple[int, ...],
    BeforeValidator(prompt_input),
    WithJsonSchema(
        {
            "anyOf": [
                *_PROMPT,
                {"type": "array", "minItems": 1, "maxItems": 1, "items": {"anyOf": _PROMPT}},
            ]
        }
    ),
]

_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
ContentText = Annotated[
    str,
    BeforeValidator(content_text),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART, "minItems": 1}]}
    ),
]
