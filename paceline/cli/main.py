"""The command `paceline`: its verbs, and what happens when one of them fails."""

import sys

import typer

from paceline import __version__
from paceline.cli import terminal
from paceline.cli.bench.command import bench
from paceline.cli.chat import chat
from paceline.cli.generate import generate
from paceline.cli.serve import serve
from paceline.cli.status import status
from paceline.cli.supervisor import ChildFailed
from paceline.cli.train_drafter import train_drafter
from paceline.errors import PacelineError

CHILD_FAILED = 1
WRONG_USE = 2

app = typer.Typer(
    name="paceline",
    help="Lossless distributed speculative decoding: the target's own text, sooner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(generate)
app.command()(chat)
app.command()(status)
app.command()(bench)
app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    }
)(train_drafter)


@app.command()
def version() -> None:
    """Print the version."""
    terminal.write_answer(f"paceline {__version__}\n")


def main() -> None:
    """Run `paceline`; errors are one sentence on stderr and a status that is not 0.

    typer turns Ctrl-C into status 130 and wrong options into status 2.
    """
    try:
        app()
    except ChildFailed as error:
        terminal.say(error.message, style="red")
        sys.exit(CHILD_FAILED)
    except PacelineError as error:
        terminal.say(f"Error: {error.message}", style="red")
        sys.exit(WRONG_USE)


if __name__ == "__main__":
    main()
