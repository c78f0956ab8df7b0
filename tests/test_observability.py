"""docs/observability.md has the tables of the code. Run as a script, writes them anew."""

from pathlib import Path

from paceline.telemetry.names import ATTRIBUTES, EVENTS, SPANS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "observability.md"


def span_tables() -> str:
    rows = ["| span | kind | service | what it is |", "|---|---|---|---|"]
    for span in SPANS:
        names = ", ".join(f"`{name}`" for name in span.name.split(", "))
        rows.append(f"| {names} | {span.kind} | {span.service} | {span.meaning} |")
    rows += ["", "| attribute | of | meaning |", "|---|---|---|"]
    for name, meaning in ATTRIBUTES.items():
        spans = [doc for doc in SPANS if name in doc.attributes]
        where = ", ".join(dict.fromkeys(short(doc.name, doc.kind) for doc in spans))
        rows.append(f"| `{name}` | {where or 'events'} | {meaning} |")
    return "\n".join(rows) + "\n"


def short(name: str, kind: str) -> str:
    """A span as a cell of a table names it."""
    if "<model>" in name:
        return "request"
    if "/" in name:
        return f"{kind}s of rounds"
    return f"`{name.removeprefix('paceline.')}`"


def event_table() -> str:
    rows = ["| event | what happened | attributes |", "|---|---|---|"]
    for event in EVENTS:
        attributes = ", ".join(f"`{name}`" for name in event.attributes)
        rows.append(f"| `{event.name}` | {event.meaning} | {attributes} |")
    return "\n".join(rows) + "\n"


def with_tables(page: str) -> str:
    for kind, table in (("spans", span_tables()), ("events", event_table())):
        begin, end = f"<!-- {kind}: written by `make format` -->\n", f"<!-- end of {kind} -->\n"
        before, found, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        assert found, f"{PAGE.name} has no line {begin}"
        assert ended, f"{PAGE.name} has no line {end}"
        page = before + begin + table + end + after
    return page


def test_the_tables_of_spans_and_events_are_current() -> None:
    page = PAGE.read_text()
    assert page == with_tables(page), "run `make format`"


def test_everything_that_a_span_or_an_event_says_is_explained() -> None:
    named = {name for doc in (*SPANS, *EVENTS) for name in doc.attributes}
    assert named == set(ATTRIBUTES)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
