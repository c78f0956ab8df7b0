"""Writes what is made of `values.yaml`: `values.schema.json`, and the tables of `README.md`.

`make format` runs this; tests/chart/test_values.py compares.
"""

import json
from pathlib import Path
from typing import Any

from values_comments import Key, described_keys
from values_schema import values_schema

FOLDER = Path(__file__).parent
SCHEMA = FOLDER / "values.schema.json"
README = FOLDER / "README.md"
BEGIN = "<!-- values: written by `make format` -->\n"
END = "<!-- end of values -->\n"
SETTINGS_OF = {
    "coordinator.settings": "coordinator",
    "target.settings": "target",
    "drafts.<pool>.settings": "drafts",
}


def schema_text() -> str:
    """The schema as its file has it."""
    return json.dumps(values_schema(), indent=1, ensure_ascii=False) + "\n"


def value_table() -> str:
    """All keys with default and meaning, in the order of values.yaml."""
    keys = described_keys()
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for key in keys:
        path = ".".join(key.path)
        rows.append(f"| `{path}` | {_default(key, keys)} | {_cell(key.description)} |")
    return "\n".join(rows) + "\n"


def settings_tables() -> str:
    """What `settings` of each block may have."""
    schema = values_schema()
    blocks = schema["properties"] | {"drafts": schema["$defs"]["draftPool"]}
    text = ""
    for title, name in SETTINGS_OF.items():
        settings = blocks[name]["properties"]["settings"]["properties"]
        rows = [f"| `{key}` | {_cell(field['description'])} |" for key, field in settings.items()]
        text += "\n".join(
            ("", f"### `{title}`", "", "| setting | meaning |", "|---|---|", *rows, "")
        )
    return text


def with_table(readme: str) -> str:
    """The page with the tables as they should be."""
    before, begun, rest = readme.partition(BEGIN)
    _, ended, after = rest.partition(END)
    assert begun and ended, f"README.md lacks the line {BEGIN if not begun else END}"
    return before + BEGIN + value_table() + settings_tables() + END + after


def _default(key: Key, keys: list[Key]) -> str:
    has_keys = any(other.path[: len(key.path)] == key.path and other != key for other in keys)
    if key.default in ("", None) or has_keys:
        return ""
    return f"`{_short(key.default)}`"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return _cell(text) if len(text) <= 60 else "see values.yaml"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


if __name__ == "__main__":
    SCHEMA.write_text(schema_text())
    README.write_text(with_table(README.read_text()))
