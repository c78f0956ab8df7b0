"""`paceline status`: workers, sequences and acceptance of a running server."""

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from paceline.cli import options, terminal
from paceline.cli.api import CoordinatorApi

DEFAULT_URL = "http://127.0.0.1:8000"


def status(
    url: Annotated[str, typer.Option(help="A running server.")] = DEFAULT_URL,
    api_key_file: options.ApiKeyFile = None,
    tls_ca_file: options.TlsCaFile = None,
    as_json: options.Json = False,
) -> None:
    """Show workers, sequences and acceptance of a running server; status 1 if it is not ready."""
    with CoordinatorApi(url, options.api_key(api_key_file), tls_ca_file) as api:
        found = api.status()
    if as_json:
        terminal.write_answer(json.dumps(found, indent=2) + "\n")
    else:
        _print(found)
    if not found["ready"]:
        raise typer.Exit(1)


def _print(found: dict[str, Any]) -> None:
    state = "ready" if found["ready"] else f"not ready: {found['reason']}"
    terminal.results.print(state, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for title in ("worker", "address", "state", "sequences", "what", "numerics"):
        table.add_column(title, justify="right" if title == "sequences" else "left")
    for worker in found["workers"]:
        table.add_row(
            worker["role"],
            worker["address"],
            "ready" if worker["ready"] else worker["reason"],
            str(worker["num_sequences"]),
            worker["drafter"] or worker["model"],
            worker["numerics"][:12] + (" (varies)" if worker["varies_with_width"] else ""),
        )
    terminal.results.print(table)
    _print_sources(found.get("sources", []))
    for drafter in dict.fromkeys(_drafter(w) for w in found["workers"] if w["role"] == "draft"):
        terminal.results.print(f"drafter: {drafter}", soft_wrap=True)
    stats = found["stats"]
    num_drafts = stats["num_draft_tokens"]
    for title, value in (
        ("model", found["model"]),
        ("running requests", found["num_running"]),
        ("sessions", found["session_store"]),
        ("committed tokens", stats["num_committed_tokens"]),
        ("tokens per target pass", f"{stats['tokens_per_target_pass']:.2f}"),
        (
            "acceptance",
            f"{stats['num_accepted_draft_tokens'] / num_drafts:.0%} of {num_drafts} drafts"
            if num_drafts
            else "no drafts yet",
        ),
        (
            "draft failures",
            ", ".join(f"{number} {reason}" for reason, number in stats["draft_failures"].items())
            or "none",
        ),
    ):
        terminal.results.print(f"{title}: {value}", soft_wrap=True)


def _print_sources(sources: list[dict[str, Any]]) -> None:
    """Where workers are looked for. Of a fixed address there is nothing to tell."""
    for source in sources:
        if source["heard_s_ago"] is None and not source["problem"]:
            continue
        number = f"lists {source['num_open']} for {source['role']}"
        if source["num_closed"]:
            number += f" and {source['num_closed']} that finish what they have"
        age = source["heard_s_ago"]
        heard = "never heard" if age is None else f"heard {age:.0f} s ago"
        terminal.results.print(
            f"{source['source']}: {number}, {heard}"
            + (f"; {source['problem']}" if source["problem"] else ""),
            soft_wrap=True,
        )


def _drafter(worker: dict[str, Any]) -> str:
    """What a draft worker runs: its method, and the model or head behind it."""
    text = worker["drafter"] or "not known yet"
    if worker["model"]:
        text += f" with {worker['model']}"
    if worker["num_parameters"]:
        text += f", {worker['num_parameters'] / 1e6:.1f} M parameters"
    return text
