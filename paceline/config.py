"""Reads a process's settings from, in rising order: defaults, a TOML file, environment, options.

A settings class is a frozen pydantic model; the string under each field says what it means, in
which unit, and why the default is what it is. Options, messages and the README's table come from
these classes, so that none of them can differ from the code. Knows no service and no setting by
name. The only module that reads `os.environ`.

Invariant: a key that no field claims, or a value that a field refuses, is an `InvalidConfig`
naming the key, the value and what was expected. Nothing is ignored.
"""

import argparse
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic.fields import FieldInfo

from paceline.errors import InvalidConfig

PREFIX = "PACELINE_"
CONFIG_FILE_KEY = "PACELINE_CONFIG_FILE"
API_KEY_KEY = "PACELINE_API_KEY"

LogLevel = Literal["debug", "info", "warning", "error"]
Port = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]

_DEVICES = "^(auto|cpu|cuda(:[0-9]+)?)$"


def _device(name: str) -> str:
    if not re.match(_DEVICES, name):
        raise ValueError("expected auto, cpu, cuda or cuda:<index>")
    return name


DeviceName = Annotated[
    str, AfterValidator(_device), WithJsonSchema({"type": "string", "pattern": _DEVICES})
]


class Settings(BaseModel):
    """Base of every settings class."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    other_keys: ClassVar[frozenset[str]] = frozenset()
    """Variables that may be there and mean something to others."""


class ServiceSettings(Settings):
    """What the settings of every service have."""

    log_level: LogLevel = "info"
    """Least severe messages that are logged."""

    log_format: Literal["auto", "text", "json"] = "auto"
    """How they are logged. `auto`: text on a terminal, else a JSON object per line, as programs
    that gather logs read it."""


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True, slots=True)
class SettingDoc:
    """One field of a settings class, as its readers see it."""

    field: str
    option: str
    """The command-line option, `--max-model-len`."""
    key: str
    """The environment variable, `PACELINE_MAX_MODEL_LEN`."""
    expected: str
    """What a value looks like: `text`, `integer`, `auto|float32`, `text,…`."""
    default: str
    """The default as one would type it; empty when there is none or it is empty."""
    description: str


def load_settings(cls: type[S], argv: Sequence[str], program: str | None = None) -> S:
    """Read the settings of a process; `argv` are its options, `program` what its help calls it.

    Raises `InvalidConfig`. With `--help` among the options prints them and exits with status 0.
    """
    parser = argparse.ArgumentParser(program, description=cls.__doc__, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", help=f"TOML file; also {CONFIG_FILE_KEY}")
    docs = describe_settings(cls)
    for doc in docs:
        text = doc.description + (f" (default: {doc.default})" if doc.default else "")
        parser.add_argument(
            doc.option, metavar=doc.expected, dest=doc.field, help=text.replace("%", "%%")
        )
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        known = ["--config", *(doc.option for doc in docs)]
        raise InvalidConfig(_unknown("option", unknown[0].partition("=")[0], known))
    config_file = options.config
    del options.config
    given = {field: text for field, text in vars(options).items() if text is not None}
    return read_settings(cls, given, config_file)


def read_settings(
    cls: type[S], options: Mapping[str, str] | None = None, config_file: str | None = None
) -> S:
    """As `load_settings`, with the options already told apart: field name to text as typed."""
    config_file = config_file or os.environ.get(CONFIG_FILE_KEY)
    found: dict[str, _Found] = {}
    if config_file:
        found |= _from_file(cls, config_file)
    found |= _from_environment(cls)
    for field, text in (options or {}).items():
        value = _parse(cls.model_fields[field], text)
        found[field] = _Found(_option(field), value)
    try:
        return cls.model_validate({field: item.value for field, item in found.items()})
    except ValidationError as error:
        raise InvalidConfig(_explain(error, found)) from None


def describe_settings(cls: type[Settings]) -> list[SettingDoc]:
    """Every field of a settings class, in order."""
    return [
        SettingDoc(
            field=name,
            option=_option(name),
            key=_key(name),
            expected=_expected(info.annotation),
            default="" if info.is_required() else _to_text(info.default),
            description=" ".join((info.description or "").split()),
        )
        for name, info in cls.model_fields.items()
    ]


def api_key_of_user() -> str:
    """The key that the user's commands show to servers; empty: none. Read from the environment."""
    return os.environ.get(API_KEY_KEY, "").strip()


def set_default_environment(values: Mapping[str, str]) -> None:
    """Set variables that libraries read, except those that are set already."""
    for key, text in values.items():
        os.environ.setdefault(key, text)


def library_environment(prefix: str) -> dict[str, str]:
    """Variables that a library reads itself, where we have to know them before it is loaded."""
    return {key: text for key, text in os.environ.items() if key.startswith(prefix)}


def variables_of_launchers(names: Sequence[str]) -> dict[str, str]:
    """Those of these variables that are set, by which other software starts several processes."""
    return {name: os.environ[name] for name in names if name in os.environ}


def child_environment(settings: Mapping[str, Any], extra: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child process: ours, but of `PACELINE_` keys exactly `settings`.

    `settings` maps field names of the child's settings class to values; None leaves one unset.
    """
    inherited = {key: text for key, text in os.environ.items() if not key.startswith(PREFIX)}
    own = {_key(field): _to_text(value) for field, value in settings.items() if value is not None}
    return inherited | dict(extra) | own


class _Found(NamedTuple):
    """A value and the key under which it was found, for messages."""

    key: str
    value: Any


def _from_file(cls: type[Settings], path: str) -> dict[str, _Found]:
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise InvalidConfig(f"the config file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"the config file {path} is not valid TOML: {error}") from None
    for key in table:
        if key not in cls.model_fields:
            raise InvalidConfig(_unknown(f"key in {path}:", key, list(cls.model_fields)))
    return {key: _Found(f"{key} in {path}", value) for key, value in table.items()}


def _from_environment(cls: type[Settings]) -> dict[str, _Found]:
    fields = {_key(name): name for name in cls.model_fields}
    found: dict[str, _Found] = {}
    for key, text in os.environ.items():
        if not key.startswith(PREFIX) or key in {CONFIG_FILE_KEY, *cls.other_keys}:
            continue
        if key not in fields:
            raise InvalidConfig(_unknown("environment variable", key, [*fields, CONFIG_FILE_KEY]))
        field = fields[key]
        found[field] = _Found(key, _parse(cls.model_fields[field], text))
    return found


def _parse(info: FieldInfo, text: str) -> Any:
    """Text from environment or command line, in the shape that a file would give it."""
    if get_origin(info.annotation) is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    if text == "" and type(None) in get_args(info.annotation):
        return None
    return text


def _to_text(value: Any) -> str:
    """The inverse of `_parse`."""
    if value is None:
        return ""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _explain(error: ValidationError, found: Mapping[str, _Found]) -> str:
    sentences = []
    items = error.errors(include_url=False)
    for item in items:
        if item["type"] == "too_short" and any(
            other["loc"][:1] == item["loc"] != other["loc"] for other in items
        ):
            continue  # entries that were refused are missing in it
        reason = item["msg"].removeprefix("Input ").removeprefix("Value error, ")
        field = str(item["loc"][0]) if item["loc"] else ""
        if item["type"] == "missing":
            reason = f"{_option(field)} ({_key(field)}) is required and was not given"
        elif field in found:
            reason = f"{found[field].key} is {item['input']!r}, but {reason}"
        sentences.append(reason)
    return "; ".join(sentences)


def _unknown(kind: str, key: str, known: Sequence[str]) -> str:
    if key == API_KEY_KEY:
        return (
            f"{kind} {key} is the key that clients show; a service accepts the keys in "
            f"{PREFIX}API_KEYS_FILE, and has no other"
        )
    # What all begin with likens none to another.
    start = len(os.path.commonprefix([key, *known]))
    close = get_close_matches(key[start:], [name[start:] for name in known], n=1)
    hint = f"did you mean {key[:start]}{close[0]}?" if close else f"known are {', '.join(known)}"
    return f"unknown {kind} {key}; {hint}"


def _expected(annotation: Any) -> str:
    names = {str: "text", int: "integer", float: "number", bool: "true|false"}
    if annotation in names:
        return names[annotation]
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return "|".join(map(str, arguments))
    if get_origin(annotation) is tuple:
        return f"{_expected(arguments[0])},…"
    if get_origin(annotation) is Annotated:
        return _expected(arguments[0])
    return _expected(next(item for item in arguments if item is not type(None)))


def _option(field: str) -> str:
    return "--" + field.replace("_", "-")


def _key(field: str) -> str:
    return PREFIX + field.upper()
