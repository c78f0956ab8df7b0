"""A report for people: four tables of at most 80 columns, and sentences on what went wrong."""

from collections.abc import Callable, Sequence

from rich.table import Table

from paceline.cli import terminal
from paceline.cli.bench.figures import Interval
from paceline.cli.bench.report import GroupFigures, Report

SHOWN_FAILURES = 5

Column = tuple[str, Callable[[GroupFigures], str]]

_SPEED: Sequence[Column] = (
    ("n", lambda g: str(g.num_questions)),
    ("tokens/s\noff", lambda g: f"{g.off.tokens_per_s:.1f}"),
    ("\non", lambda g: f"{g.on.tokens_per_s:.1f}"),
    ("speed-up\n(95 %)", lambda g: ratio(g.speedup, g.speedup_interval)),
    (
        "with prompt\n(95 %)",
        lambda g: ratio(g.speedup_with_prompt, g.speedup_with_prompt_interval),
    ),
    ("equal", lambda g: f"{g.num_equal}/{g.num_questions}"),
)
_TIMES: Sequence[Column] = (
    ("prompt\nms", lambda g: _milliseconds(g.median_prompt_s)),
    ("1st token\noff", lambda g: _milliseconds(g.off.median_time_to_first_token_s)),
    ("ms\non", lambda g: _milliseconds(g.on.median_time_to_first_token_s)),
    ("per token\noff", lambda g: _milliseconds(g.off.median_time_per_token_s)),
    ("ms\non", lambda g: _milliseconds(g.on.median_time_per_token_s)),
    ("chunk gap\noff", lambda g: _milliseconds(g.off.median_chunk_gap_s)),
    ("ms\non", lambda g: _milliseconds(g.on.median_chunk_gap_s)),
)
_DRAFTS: Sequence[Column] = (
    ("rounds", lambda g: str(g.on.num_target_passes)),
    ("tokens\n/pass", lambda g: f"{g.on.tokens_per_target_pass:.2f}"),
    ("accept.\nlength", lambda g: f"{g.mean_acceptance_length:.2f}"),
    ("accept.\nrate", lambda g: f"{g.draft_acceptance_rate:.0%}"),
    ("accepted by position, %", lambda g: percentages(g.acceptance_by_position)),
)
_COSTS: Sequence[Column] = (
    ("draft ms\n/token", lambda g: ratio_or_dash(g.draft_ms_per_token)),
    ("bytes/token\ndraft", lambda g: f"{g.draft_bytes_per_token:.0f}"),
    ("\ntarget", lambda g: f"{g.target_bytes_per_token:.0f}"),
)


def print_report(report: Report) -> None:
    """Print what was measured of one service to stdout."""
    rows = [*(report.groups if len(report.groups) > 1 else ())]
    if report.overall is not None:
        rows.append(report.overall)
        terminal.results.print("Speed without (off) and with (on) speculation", style="bold")
        terminal.results.print(_table(rows, _SPEED))
        terminal.results.print("\nTimes (median)", style="bold")
        terminal.results.print(_table(rows, _TIMES))
        terminal.results.print("\nWith speculation", style="bold")
        terminal.results.print(_table(rows, _DRAFTS))
        terminal.results.print(
            "\nDrafting and the wire, per proposed and committed token", style="bold"
        )
        terminal.results.print(_table(rows, _COSTS))
        terminal.results.print("")
    if report.throughput:
        rates = ", ".join(f"{mode} {rate:.1f}" for mode, rate in report.throughput.items())
        terminal.results.print(f"Tokens/s of all clients together: {rates}")


def print_verdict(report: Report) -> None:
    """Say on stderr what failed, and whether the answers are equal."""
    for row in report.failures[:SHOWN_FAILURES]:
        terminal.say(f"Question {row.question_id} ({row.mode}) failed: {row.error}", style="red")
    if report.failures:
        terminal.say(
            f"{len(report.failures)} requests failed; their questions are in no figure.",
            style="bold red",
        )
    if report.unequal_question_ids:
        ids = ", ".join(report.unequal_question_ids)
        terminal.say(f"The answers DIFFER between requests: questions {ids}.", style="bold red")
    elif report.overall is not None:
        number = report.overall.num_questions
        terminal.say(f"Texts and token ids are equal in {number} of {number}.", style="green")


def _table(groups: Sequence[GroupFigures], columns: Sequence[Column]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("")
    for title, _ in columns:
        table.add_column(title, justify="right", no_wrap=True)
    for group in groups:
        table.add_row(group.group, *(show(group) for _, show in columns))
    return table


def ratio(value: float, interval: Interval | None) -> str:
    """A ratio and its interval."""
    if interval is None:
        return f"{value:.2f}"
    return f"{value:.2f} ({interval.low:.2f}-{interval.high:.2f})"


def ratio_or_dash(value: float | None) -> str:
    """A number, or that there is none."""
    return "-" if value is None else f"{value:.2f}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f}"


def percentages(shares: Sequence[float]) -> str:
    """Shares as whole numbers with blanks between."""
    return " ".join(f"{share * 100:.0f}" for share in shares) or "-"
