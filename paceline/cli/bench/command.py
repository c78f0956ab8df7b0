"""The command `paceline bench`: its options, its progress bar, and the document it writes."""

import json
import sys
from collections.abc import Callable, Iterator
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
from paceline.cli.bench.measure import Bench, Plan, Row
from paceline.cli.bench.prompts import read_questions, select
from paceline.cli.bench.report import Report, make_report
from paceline.cli.bench.tables import print_report
from paceline.cli.connection import connect
from paceline.errors import InvalidConfig

INTERRUPTED = 130


@options.with_server_options(only=options.SERVER_ESSENTIALS, panel=options.SERVER_PANEL)
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
    url: options.Url = None,
    limit: Annotated[
        int | None, typer.Option(help="Questions per task group, evenly spaced.", min=1)
    ] = None,
    categories: Annotated[
        str, typer.Option(help="Only these categories or task groups, with commas between.")
    ] = "",
    max_tokens: Annotated[int, typer.Option(help="Longest answer in tokens.", min=1)] = 128,
    concurrency: Annotated[int, typer.Option(help="Clients at the same time.", min=1, max=64)] = 1,
    repeats: Annotated[
        int, typer.Option(help="Rounds of off and on for each question.", min=1)
    ] = 2,
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
) -> None:
    """Measure prompts with and without speculation, in turns, and compare the answers.

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
    with connect(url, server) as (api, _, check):
        status = api.status()
        plan = Plan(concurrency, repeats, {**settings, "model": status["model"]}, speculation, raw)
        with _progress(plan.num_requests(len(questions))) as advance:
            run = Bench(api, plan, advance)
            try:
                run.run(questions, check)
            except KeyboardInterrupt:
                is_interrupted = True

    report = make_report(run.rows, seed, run.busy_s if concurrency > 1 else None)
    document = {
        "date": started.isoformat(timespec="seconds"),
        "command": ["paceline", *sys.argv[1:]],
        "versions": describe_versions(),
        "machine": describe_machine(),
        "server": status,
        "plan": asdict(plan),
        "is_interrupted": is_interrupted,
        **asdict(report),
        "rows": [asdict(row) for row in run.rows],
    }
    text = json.dumps(document, ensure_ascii=False) + "\n"
    if output is not None:
        output.write_text(text, encoding="utf-8")
    if as_json:
        terminal.write_answer(text)
    else:
        print_report(report)
    _exit_unless_good(report, is_interrupted)


def _exit_unless_good(report: Report, is_interrupted: bool) -> None:
    if is_interrupted:
        terminal.say("Interrupted; the figures are those of the questions so far.", style="red")
        raise typer.Exit(INTERRUPTED)
    if report.failures or report.unequal_question_ids:
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
