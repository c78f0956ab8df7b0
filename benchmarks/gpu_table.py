"""The tables of `gpu.py`, of the document that it writes."""

from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table


def write_tables(document: dict[str, Any], file: TextIO) -> None:
    """Print a table for each part that was run."""
    console = Console(file=file, highlight=False, markup=False, width=110)
    console.print(document["device"])
    for part, (titles, rows_of) in _PARTS.items():
        found = document.get(part)
        if found is None:
            continue
        console.print(f"\n{part} ({document['seconds'][part]:g} s)")
        if "failed" in found:
            console.print(f"failed: {found['failed']}", soft_wrap=True)
            continue
        table = Table(box=None, pad_edge=False)
        for title in titles:
            table.add_column(title, justify="right")
        for row in rows_of(found):
            table.add_row(*(_text(cell) for cell in row))
        console.print(table)


def _text(cell: Any) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "NO"
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)


def _exactness(found: dict[str, Any]) -> Iterable[tuple[Any, ...]]:
    for dtype, row in found.items():
        claim = "the law" if row["varies_with_width"] else "the text"
        on, texts = row["equal_with_drafts"], row["texts"]
        yield dtype, claim, texts, on, row["equal_alone"], row.get("equal_to_cpu", "-")


def _passes(found: dict[str, Any]) -> Iterable[tuple[Any, ...]]:
    for model, rows in found.items():
        for row in rows:
            yield model, row["batch"], row["rows"], row["ms"], row["launches"]


def _decoding(found: list[dict[str, Any]]) -> Iterable[tuple[Any, ...]]:
    for row in found:
        plain = row["plain_tokens_per_s"]
        yield row["batch"], "plain", plain, "-", 1.0, "-", "-"
        for name, drafts in row.items():
            if not name.startswith("drafts_"):
                continue
            speed = drafts["tokens_per_s"]
            yield (
                *(row["batch"], f"right {name.removeprefix('drafts_')}", speed),
                *(drafts["acceptance"], speed / plain, drafts["draft_share"], drafts["is_equal"]),
            )


def _services(found: list[dict[str, Any]]) -> Iterable[tuple[Any, ...]]:
    for row in found:
        for name in ("plain", "drafts"):
            one = row[name]
            yield (
                *(row["batch"], name, one["tokens_per_s"], one["coordinator_cpu_share"]),
                *(one["round_overhead_ms"], row["is_equal"]),
            )


_PARTS: dict[str, tuple[tuple[str, ...], Any]] = {
    "exactness": (
        ("type", "claim", "texts", "equal with drafts", "equal of 2 alone", "equal to CPU"),
        _exactness,
    ),
    "passes": (("model", "batch", "rows", "ms", "launches"), _passes),
    "decoding": (
        ("batch", "drafts", "tokens/s", "accepted", "speed-up", "draft share", "equal"),
        _decoding,
    ),
    "services": (
        ("batch", "", "tokens/s", "coordinator CPU", "beside computing, ms", "equal"),
        _services,
    ),
}
