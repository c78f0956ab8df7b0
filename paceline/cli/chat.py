"""`paceline chat`: a conversation on the terminal. Ctrl-C cuts an answer short; it is kept so."""

import secrets
import sys
from contextlib import suppress
from typing import Annotated, Any

import typer

from paceline.cli import options, terminal
from paceline.cli.api import Answer, ApiError
from paceline.cli.connection import Connection, connect

with suppress(ImportError):  # Not everywhere; gives `input` line editing and a history.
    import readline  # noqa: F401  # imported for its effect on `input`

PROMPT = "> "


@options.with_server_options(only=options.SERVER_ESSENTIALS, panel=options.SERVER_PANEL)
def chat(
    server: options.ServerOptions,
    url: options.Url = None,
    max_tokens: options.MaxTokens = None,
    temperature: Annotated[float, typer.Option(help="Randomness; 0: none.")] = 0.7,
    seed: options.Seed = None,
    system: options.System = "",
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    no_speculation: options.NoSpeculation = False,
) -> None:
    """Talk to the model: at the server --url, or at one that runs just as long.

    /exit, Ctrl-D, or Ctrl-C at the prompt ends it. Ctrl-C during an answer ends that answer.
    """
    settings = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "speculation": options.speculation(num_speculative_tokens, no_speculation),
        # Takes each turn to the workers that already hold the conversation.
        "session_id": secrets.token_hex(16),
    }
    body = {key: value for key, value in settings.items() if value is not None}
    messages = [{"role": "system", "content": system}] if system else []
    with connect(url, server) as connection:
        body["model"] = connection.api.model()
        if sys.stdin.isatty():
            terminal.say(f"{body['model']} at {connection.url}. /exit ends it.", style="dim")
        _converse(connection, body, messages)


def _converse(connection: Connection, body: dict[str, Any], messages: list[dict[str, str]]) -> None:
    while (line := _read_line()) not in (None, "/exit"):
        if not line:
            continue
        asked = [*messages, {"role": "user", "content": line}]
        request = body | {"messages": asked}
        answer = Answer()
        try:
            connection.api.stream("/v1/chat/completions", request, terminal.write_answer, answer)
            summary = terminal.one_line(answer)
        except KeyboardInterrupt:
            summary = "cancelled"
        except ApiError as error:
            connection.check()
            summary = error.message
        terminal.write_answer("\n")
        terminal.say(summary, style="dim")
        if answer.text:
            messages[:] = [*asked, {"role": "assistant", "content": answer.text}]


def _read_line() -> str | None:
    """The next line, without blanks around it; None at the end of the input."""
    try:
        return input(PROMPT if sys.stdin.isatty() else "").strip()
    except (EOFError, KeyboardInterrupt):
        terminal.write_answer("\n")
        return None
