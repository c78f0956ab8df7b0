"""Command-line options: those that a settings class describes, and those that commands share."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from paceline.api_keys import OwnKey
from paceline.cli.config import ServeSettings
from paceline.cli.head_check import check_heads
from paceline.config import (
    API_KEY_KEY,
    CONFIG_FILE_KEY,
    SettingDoc,
    api_key_of_user,
    describe_settings,
    read_settings,
)
from paceline.errors import InvalidConfig

SERVER_ESSENTIALS = (
    *("model", "drafter", "draft_model", "head", "exit_layer", "draft_tree", "allow_pickle"),
    "tensor_parallel_size",
)
"""What commands that start a server on the side ask about it; the rest comes from the file and
the environment."""
SERVER_PANEL = "The server that is started without --url"

Url = Annotated[
    str | None,
    typer.Option(help="A running server, such as http://127.0.0.1:8000.", show_default=False),
]
MaxTokens = Annotated[int | None, typer.Option(help="Longest answer in tokens.", min=1)]
Seed = Annotated[int | None, typer.Option(help="Seed of the random choices; makes them repeat.")]
System = Annotated[str, typer.Option(help="Instructions that go before the conversation.")]
NumSpeculativeTokens = Annotated[
    int | None,
    typer.Option(help="Drafts per round, instead of as many as pay.", min=0),
]
NoSpeculation = Annotated[bool, typer.Option("--no-speculation", help="Plain decoding.")]
ApiKeyFile = Annotated[
    str | None,
    typer.Option(
        "--api-key-file",
        metavar="file",
        help=f"File with the API key for --url; the key itself may be in {API_KEY_KEY}.",
        show_default=False,
    ),
]
TlsCaFile = Annotated[
    str | None,
    typer.Option(
        "--tls-ca-file",
        metavar="file",
        help="PEM file of whose certificates are trusted, for an https --url.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What was typed about a server to be started."""

    texts: dict[str, str] = field(default_factory=dict)
    """Field of `ServeSettings` to text."""
    config_file: str | None = None
    api_key_file: str | None = None
    """Of a server that is running."""
    tls_ca_file: str | None = None
    """Likewise."""

    def read(self) -> ServeSettings:
        """With environment and file; raises `InvalidConfig`, also for a head of another kind."""
        settings = read_settings(ServeSettings, self.texts, self.config_file)
        check_heads(settings)
        return settings

    def read_for_one_command(self) -> ServeSettings:
        """As `read`, on any free ports: another server may be running on the usual ones."""
        return self.read().model_copy(update={"http_port": 0, "grpc_port": 0})

    def api_key(self, url: str | None) -> str:
        """The key for the server at `url`; raises `InvalidConfig` for one without a server."""
        for option, value in (
            ("--api-key-file", self.api_key_file),
            ("--tls-ca-file", self.tls_ca_file),
        ):
            if url is None and value is not None:
                raise InvalidConfig(f"{option} is for the server at --url, which was not given")
        return api_key(self.api_key_file)

    def refuse_with_url(self) -> None:
        """Raise `InvalidConfig` if anything was typed although the server is already running."""
        for name in [*self.texts, *(["config"] if self.config_file else [])]:
            raise InvalidConfig(
                f"--{name.replace('_', '-')} contradicts --url: it is for a server that this "
                "command starts itself"
            )


def api_key(file: str | None) -> str:
    """The key that was given, in a file or the environment; empty: none."""
    return OwnKey(file).file.value if file else api_key_of_user()


def speculation(num_speculative_tokens: int | None, off: bool) -> dict[str, Any] | None:
    """The request field of that name; None leaves it to the server."""
    if off:
        if num_speculative_tokens:
            raise InvalidConfig(
                f"--num-speculative-tokens {num_speculative_tokens} contradicts --no-speculation"
            )
        return {"method": "off"}
    if num_speculative_tokens is None:
        return None
    return {"method": "auto", "num_speculative_tokens": num_speculative_tokens}


def with_server_options(
    only: Sequence[str] | None = None, panel: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `ServeSettings`; it gets them as `server: ServerOptions`.

    All values stay text: `ServeSettings` judges them, so that they meet the same messages as
    values from file and environment.
    """
    docs = [doc for doc in describe_settings(ServeSettings) if not only or doc.field in only]
    options = [_parameter(doc, panel) for doc in docs]
    options.append(
        _option("config", "--config", "file", f"TOML file; also {CONFIG_FILE_KEY}.", panel)
    )
    if panel is not None:  # the command may talk to another server as well
        options.append(_keyword("api_key_file", ApiKeyFile))
        options.append(_keyword("tls_ca_file", TlsCaFile))

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**values: Any) -> None:
            config_file = values.pop("config")
            access = [values.pop(name, None) for name in ("api_key_file", "tls_ca_file")]
            texts = {doc.field: values.pop(doc.field) for doc in docs}
            given = {name: text for name, text in texts.items() if text is not None}
            command(**values, server=ServerOptions(given, config_file, *access))

        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(command).parameters.values()
            if parameter.name != "server"
        ]
        signature = inspect.Signature([*own, *options])
        run.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect.signature
        run.__name__ = command.__name__
        run.__doc__ = command.__doc__
        return run

    return decorate


def _parameter(doc: SettingDoc, panel: str | None) -> inspect.Parameter:
    has_choices = "|" in doc.expected
    text = doc.description
    if has_choices:
        text += f" One of {', '.join(doc.expected.split('|'))}."
    if doc.default:
        text += f" [default: {doc.default}]"
    # An opening bracket would otherwise start a style of rich.
    text = text.replace("[", r"\[")
    return _option(doc.field, doc.option, "choice" if has_choices else doc.expected, text, panel)


def _option(
    name: str, option: str, metavar: str, text: str, panel: str | None
) -> inspect.Parameter:
    annotation = Annotated[
        str | None,
        typer.Option(option, metavar=metavar, help=text, rich_help_panel=panel, show_default=False),
    ]
    return _keyword(name, annotation)


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )
