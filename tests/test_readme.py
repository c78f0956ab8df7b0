"""What the pages say is there. Run as a script, writes the README's table of options anew."""

import re
from pathlib import Path

import pytest

from paceline.cli.config import ServeSettings
from paceline.config import describe_settings

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
PATH = re.compile(r"`((?:[a-z_0-9.]+/)+[a-z_0-9.*]*)`|\]\((?!http)([^)#]+)\)")
"""A path in code marks, or a link to a file."""
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = {code or link for code, link in PATH.findall(page.read_text())}
    missing = {
        path
        for path in named
        if not any(any(base.glob(path)) for base in (ROOT, page.parent, ROOT / "paceline"))
    }
    assert missing == set()


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
