"""JSON into bodies, read strictly.

Invariant: nothing that a client says is ignored. A parameter is used, or holds the value that asks
for nothing, or is refused by its name; `null` means absent.
"""

import re
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, from_json

from coordinator.http.fields import shown
from coordinator.http.unsupported import asks_for_nothing
from paceline.errors import InvalidRequest

_WORDS = {
    "Input should be": "expected",
    "List should have": "expected a list with",
    "String should have": "expected a text with",
    "String should match": "expected a text that matches",
    " after validation": "",
}
"""What pydantic says, and what everything else here says."""
_A_MODEL = re.compile(r"a valid dictionary or instance of \w+")

_Body = TypeVar("_Body", bound=BaseModel)


class Strict(BaseModel):
    """An object without unknown keys, whose values are of the right type as they stand."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _as_meant(cls, data: Any) -> Any:
        if isinstance(data, dict):
            given = {name: _whole(value) for name, value in data.items() if value is not None}
            # One that is unknown is enough to refuse; an error for each would take seconds.
            known = {field.alias or name for name, field in cls.model_fields.items()}
            unknown = [name for name in given if name not in known]
            for name in unknown[1:]:
                del given[name]
            return given
        return data


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 2.0 is the integer 2."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list() if any(isinstance(item, float | list) for item in value):
            return [_whole(item) for item in value]
        case _:
            return value


def parse(body_type: type[_Body], data: bytes) -> _Body:
    """A body out of JSON.

    Raises:
        InvalidRequest: says what is wrong, and in which parameter.
    """
    try:
        values = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise InvalidRequest(f"the body is {shown(values)}; expected a JSON object")
    supported = {
        name: value
        for name, value in values.items()
        if name in body_type.model_fields or not asks_for_nothing(name, value)
    }
    try:
        return body_type.model_validate(supported)
    except ValidationError as error:
        raise _as_invalid_request(error.errors(include_url=False)[0]) from None


def _as_invalid_request(error: ErrorDetails) -> InvalidRequest:
    param = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]
    ).removeprefix(".")
    match error["type"]:
        case "extra_forbidden":
            value = shown(error["input"])
            message = f"{param}: is {value}, but this API has no parameter of this name"
        case "missing":
            message = f"{param}: is missing"
        case _:
            expected = error["msg"].removeprefix("Value error, ")
            for theirs, ours in _WORDS.items():
                expected = expected.replace(theirs, ours)
            expected = _A_MODEL.sub("an object", expected)
            message = f"{param}: is {shown(error['input'])}; {expected}"
    return InvalidRequest(message, param)
