"""The command `paceline bench`: its options, its progress bar, and the document it writes."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from paceline.cli import options, terminal
from paceline.cli.bench.machine import describe_machine, describe_versions
from paceline.cli.bench.markdown import Measured, markdown
from paceline.cli.bench.measure import Bench, Plan, Row, measure
from paceline.cli.bench.prompts import read_questions, select
from paceline.cli.bench.report import make_report, questions_answered_otherwise
from paceline.cli.bench.services import Service, services
from paceline.cli.bench.tables import print_report, print_verdict
from paceline.errors import InvalidConfig

INTERRUPTED = 130


@options.with_server_options(
    only=[name for name in options.SERVER_ESSENTIALS if name not in ("drafter", "head")],
    panel=options.SERVER_PANEL,
)
def bench(
    prompts: Annotated[
        Path,
        typer.Argument(
            help="JSON lines as Spec-Bench has them (question_id, category, turns; the first turn "
            "is asked) or with `prompt`; else a prompt per line.",
            show_default=False,
        ),
    ],
    server: options.ServerOptions,
    url: Annotated[
        list[str] | None,
        typer.Option(
            help="A running server, such as http://127.0.0.1:8000; several are compared.",
            show_default=False,
        ),
    ] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="As for `paceline serve`; of several, each gets a server, and they take turns.",
            rich_help_panel=options.SERVER_PANEL,
            show_default=False,
        ),
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(
            help="As for `paceline serve`; of several, each drafter gets the first one that is for "
            "it, and drafters that run no head get none.",
            rich_help_panel=options.SERVER_PANEL,
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Questions per task group, evenly spaced.", min=1)
    ] = None,
    categories: Annotated[
        str, typer.Option(help="Only these categories or task groups, with commas between.")
    ] = "",
    max_tokens: Annotated[int, typer.Option(help="Longest answer in tokens.", min=1)] = 128,
    concurrency: Annotated[int, typer.Option(help="Clients at the same time.", min=1, max=64)] = 1,
    repeats: Annotated[
        int,
        typer.Option(
            help="Rounds of off and on for each question. From the second on a drafter may copy "
            "what it saw answered in the first.",
            min=1,
        ),
    ] = 1,
    temperature: Annotated[float, typer.Option(help="Randomness of the answers.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of random choices and of the intervals.")] = 0,
    method: Annotated[
        str, typer.Option(help="What is measured: auto, or the name of a drafter.")
    ] = "auto",
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue prompts as they are, without chat template.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(help="Also write everything, each request included, to this JSON file."),
    ] = None,
    as_json: options.Json = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, a table for each task group.")
    ] = False,
) -> None:
    """Measure prompts with and without speculation, in turns, and compare the answers.

    With several --drafter or --url each is measured against itself without speculation.

    Speed-up is Spec-Bench's: mean tokens/s over questions, on over off.
    It is shown twice: with the prompts in the cache, and with what they cost.
    Status 1 if a request failed or an answer differed.
    """
    if method == "off":
        raise InvalidConfig("--method is 'off', which is measured anyway, expected auto or a name")
    names = [name.strip() for name in categories.split(",") if name.strip()]
    questions = select(read_questions(prompts), names, limit)
    if output is not None:
        _check_writable(output)
    speculation: dict[str, Any] = {"method": method}
    if num_speculative_tokens is not None:
        speculation["num_speculative_tokens"] = num_speculative_tokens
    settings = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}

    started = datetime.now(UTC)
    is_interrupted = False
    with services(url or [], drafter or [], head or [], server) as found:
        model = found[0].status["model"]
        plan = Plan(concurrency, repeats, {**settings, "model": model}, speculation, raw)
        with _progress(len(found) * plan.num_requests(len(questions))) as advance:
            benches = [Bench(service.api, plan, advance) for service in found]
            try:
                measure(benches, plan, questions, lambda: _check_all(found))
            except KeyboardInterrupt:
                is_interrupted = True

    measured = [
        Measured(
            _name(service, found),
            service.num_draft_parameters,
            make_report(one.rows, seed, one.busy_s if concurrency > 1 else None, one.traffic),
        )
        for service, one in zip(found, benches, strict=True)
    ]
    differing = questions_answered_otherwise([one.rows for one in benches])
    document = {
        "date": started.isoformat(timespec="seconds"),
        "command": ["paceline", *sys.argv[1:]],
        "versions": describe_versions(),
        "machine": describe_machine(),
        "plan": asdict(plan),
        "is_interrupted": is_interrupted,
        "differing_question_ids": differing,
        "services": [
            {
                "name": one.name,
                "num_draft_parameters": one.num_draft_parameters,
                "server": service.status,
                "traffic": {group: asdict(traffic) for group, traffic in bench.traffic.items()},
                **asdict(one.report),
                "rows": [asdict(row) for row in bench.rows],
            }
            for one, service, bench in zip(measured, found, benches, strict=True)
        ],
    }
    text = json.dumps(document, ensure_ascii=False) + "\n"
    is_kept = output is None or _is_written(output, text)
    if as_json:
        terminal.write_answer(text)
    elif as_markdown:
        terminal.write_answer(markdown(measured, document))
    _print_and_exit(measured, differing, is_interrupted, with_tables=not (as_json or as_markdown))
    if not is_kept:
        raise typer.Exit(1)


def _name(service: Service, others: Sequence[Service]) -> str:
    """What tells it from the others."""
    is_only = sum(other.drafters == service.drafters for other in others) == 1
    return service.drafters if is_only else f"{service.drafters} at {service.url}"


def _check_all(found: Sequence[Service]) -> None:
    for service in found:
        service.check()


def _print_and_exit(
    measured: Sequence[Measured], differing: Sequence[str], is_interrupted: bool, with_tables: bool
) -> None:
    for one in measured:
        if len(measured) > 1:
            terminal.say(f"\n{one.name}", style="bold")
        if with_tables:
            print_report(one.report)
        print_verdict(one.report)
    if len(measured) > 1 and differing:
        terminal.say(f"The answers DIFFER: questions {', '.join(differing)}.", style="bold red")
    if is_interrupted:
        terminal.say("Interrupted; the figures are those of the questions so far.", style="red")
        raise typer.Exit(INTERRUPTED)
    if differing or any(one.report.failures for one in measured):
        raise typer.Exit(1)


@contextmanager
def _progress(num_requests: int) -> Iterator[Callable[[Row], None]]:
    """A bar on a terminal, nothing in a pipe; what it gives is called after each request."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = terminal.messages
    with Progress(
        *columns, console=console, disable=not console.is_terminal, transient=True
    ) as bar:
        task = bar.add_task("Measuring", total=num_requests)

        def advance(row: Row) -> None:
            bar.update(task, advance=1, description=f"{row.group} {row.question_id}, {row.mode}")

        yield advance


def _check_writable(path: Path) -> None:
    """Find out before an hour of measuring, not after it."""
    try:
        path.open("a").close()
    except OSError as error:
        raise InvalidConfig(f"--output {path} cannot be written: {error.strerror}") from None


def _is_written(path: Path, text: str) -> bool:
    """Write what was measured; where that fails, say so and go on: the figures are worth a look."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        terminal.say(f"--output {path} cannot be written: {error.strerror}", style="bold red")
        return False
    return True
