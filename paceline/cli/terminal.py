"""What commands print: progress and figures on stderr, answers on stdout.

So an answer can be piped onwards while a person still sees the rest. On a terminal rich adds
colour and a spinner; in a pipe the same lines are plain.
"""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from paceline.cli.api import Answer

messages = Console(stderr=True, highlight=False, markup=False)
"""Progress, figures and errors."""

results = Console(highlight=False, markup=False)
"""What was asked for."""


def write_answer(text: str) -> None:
    """Print a piece of an answer as it is, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def say(text: str, style: str = "") -> None:
    """Print a sentence."""
    messages.print(text, style=style, soft_wrap=True)


def print_figures(columns: Sequence[tuple[str, Answer]]) -> None:
    """Print what one or two answers cost, side by side."""
    table = Table(box=None, pad_edge=False, show_header=len(columns) > 1)
    table.add_column("")
    for title, _ in columns:
        table.add_column(title, justify="right")
    answers = [answer for _, answer in columns]
    for title, cells in (
        ("tokens", [str(answer.num_tokens) for answer in answers]),
        ("tokens/s", [f"{answer.tokens_per_s:.1f}" for answer in answers]),
        ("first token", [f"{answer.time_to_first_token_s * 1000:.0f} ms" for answer in answers]),
        ("rounds", [_figure(answer, "num_target_passes", "d") for answer in answers]),
        (
            "tokens per target pass",
            [_figure(answer, "tokens_per_target_pass", ".2f") for answer in answers],
        ),
        ("acceptance", [_acceptance(answer) for answer in answers]),
    ):
        table.add_row(title, *cells)
    messages.print(table)


def one_line(answer: Answer) -> str:
    """What an answer cost, in a line."""
    return (
        f"{answer.num_tokens} tokens, {answer.tokens_per_s:.1f} tokens/s, "
        f"{_figure(answer, 'num_target_passes', 'd')} rounds, "
        f"{_figure(answer, 'tokens_per_target_pass', '.2f')} tokens per target pass, "
        f"acceptance {_acceptance(answer)}"
    )


def _figure(answer: Answer, name: str, form: str) -> str:
    value = answer.metrics.get(name)
    return "-" if value is None else format(value, form)


def _acceptance(answer: Answer) -> str:
    num_drafts = answer.metrics.get("num_draft_tokens", 0)
    if not num_drafts:
        return "no drafts"
    num_accepted = answer.metrics["num_accepted_draft_tokens"]
    return f"{num_accepted / num_drafts:.0%} ({num_accepted} of {num_drafts})"
