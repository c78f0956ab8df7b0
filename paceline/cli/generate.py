"""`paceline generate`: one answer, what it cost, and if asked what it costs without drafts."""

import json
import random
from typing import Annotated, Any

import typer

from paceline.cli import options, terminal
from paceline.cli.api import Answer
from paceline.cli.connection import connect
from paceline.cli.undrafted import why_no_drafts
from paceline.errors import InvalidConfig

OFF = {"method": "off"}


@options.with_server_options(only=options.SERVER_ESSENTIALS, panel=options.SERVER_PANEL)
def generate(
    prompt: Annotated[str, typer.Argument(help="What to answer.")],
    server: options.ServerOptions,
    url: options.Url = None,
    max_tokens: options.MaxTokens = 256,
    temperature: Annotated[
        float, typer.Option(help="Randomness; 0, the default, gives the same answer each time.")
    ] = 0.0,
    seed: options.Seed = None,
    system: options.System = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is, without chat template.")
    ] = False,
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    no_speculation: options.NoSpeculation = False,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Answer again without drafts; status 1 if that differs."),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Answer one prompt: by the server at --url, or by one that runs just as long."""
    if raw and system:
        raise InvalidConfig("--system contradicts --raw: it is a part of the chat template")
    if compare and no_speculation:
        raise InvalidConfig("--compare contradicts --no-speculation: there is nothing to compare")
    if compare and temperature > 0 and seed is None:
        seed = random.getrandbits(32)
    body: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "return_token_ids": True,
        "speculation": options.speculation(num_speculative_tokens, no_speculation),
    }
    if raw:
        path, body["prompt"] = "/v1/completions", prompt
    else:
        path = "/v1/chat/completions"
        turns = [("system", system)] if system else []
        body["messages"] = [
            {"role": role, "content": text} for role, text in [*turns, ("user", prompt)]
        ]
    body = {key: value for key, value in body.items() if value is not None}

    with connect(url, server) as (api, _, _):
        body["model"] = api.model()
        answer, plain = Answer(), Answer()
        if compare:
            # Both answers find the prompt in the cache, so that only decoding is compared.
            api.stream(path, body | {"max_tokens": 1}, _ignore, Answer())
        api.stream(path, body, _ignore if as_json else terminal.write_answer, answer)
        if compare:
            if not as_json:
                terminal.write_answer("\n\n")
            with terminal.messages.status("The same without drafts"):
                api.stream(path, body | {"speculation": OFF}, _ignore, plain)
        excuse = "" if no_speculation else why_no_drafts(answer, api.status()["workers"])
    is_equal = answer.said == plain.said
    if as_json:
        _print_json(answer, plain if compare else None)
    elif compare:
        _print_comparison(answer, plain, excuse)
    else:
        terminal.write_answer("\n")
        terminal.say("")
        terminal.print_figures([("", answer)])
        if excuse:
            terminal.say(excuse)
    if compare and not is_equal:
        raise typer.Exit(1)


def _print_json(answer: Answer, plain: Answer | None) -> None:
    document = answer.as_json()
    if plain is not None:
        document["without_speculation"] = plain.as_json()
        document["speedup"] = round(_speedup(answer, plain), 3)
        document["equal"] = answer.said == plain.said
    terminal.write_answer(json.dumps(document, ensure_ascii=False, indent=2) + "\n")


def _print_comparison(answer: Answer, plain: Answer, excuse: str) -> None:
    terminal.print_figures([("speculation", answer), ("off", plain)])
    if excuse:
        terminal.say(excuse)
    terminal.say(f"Speed-up: {_speedup(answer, plain):.2f}", style="bold")
    if answer.text != plain.text:
        terminal.say("The texts DIFFER. Without drafts it is:", style="bold red")
        terminal.say(plain.text)
    elif answer.token_ids != plain.token_ids:
        terminal.say("The text is equal, the token ids DIFFER.", style="bold red")
    elif answer.finish_reason != plain.finish_reason:
        reasons = f"{answer.finish_reason}, without drafts {plain.finish_reason}"
        terminal.say(
            f"All tokens are equal, the finish reasons DIFFER: {reasons}.", style="bold red"
        )
    else:
        terminal.say(f"The text and all {answer.num_tokens} token ids are equal.", style="green")


def _speedup(answer: Answer, plain: Answer) -> float:
    return answer.tokens_per_s / plain.tokens_per_s if plain.tokens_per_s else 0.0


def _ignore(text: str) -> None:
    """For an answer that is not shown while it comes."""
