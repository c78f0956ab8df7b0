"""The README's table of options is what the settings say. Run as a script, writes it anew."""

from pathlib import Path

from paceline.cli.config import ServeSettings
from paceline.config import describe_settings

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN = "<!-- options: written by `make format` -->\n"
END = "<!-- end of options -->\n"


def option_table() -> str:
    rows = ["| option | variable | default | meaning |", "|---|---|---|---|"]
    for doc in describe_settings(ServeSettings):
        default = f"`{doc.default}`" if doc.default else ""
        meaning = doc.description.replace("|", r"\|")
        rows.append(f"| `{doc.option}` | `{doc.key}` | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def with_table(readme: str) -> str:
    before, found, rest = readme.partition(BEGIN)
    _, ended, after = rest.partition(END)
    assert found, f"README.md has no line {BEGIN}"
    assert ended, f"README.md has no line {END}"
    return before + BEGIN + option_table() + END + after


def test_the_table_of_options_is_current() -> None:
    readme = README.read_text()
    assert readme == with_table(readme), "run `make format`"


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
