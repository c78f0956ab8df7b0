"""The services that one benchmark compares: started for it, one for each drafter, or running.

They run side by side and take turns, so that each is measured on the same machine at the same time
as the others. A service that is not asked computes nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from paceline.cli import terminal
from paceline.cli.api import CoordinatorApi
from paceline.cli.connection import connect
from paceline.cli.options import ServerOptions
from paceline.errors import InvalidConfig
from paceline.heads.kind import KINDS_RUN_BY, head_kind


@dataclass(frozen=True, slots=True)
class Service:
    """A service that answers."""

    api: CoordinatorApi
    url: str
    status: dict[str, Any]
    """When it was connected to."""
    check: Callable[[], None]
    """Raises `ChildFailed` if it is ours and has lost what it needs."""

    @property
    def drafters(self) -> str:
        """What its draft workers do."""
        drafters = [w["drafter"] for w in self.status["workers"] if w["role"] == "draft"]
        return ", ".join(dict.fromkeys(drafters)) or "none"

    @property
    def num_draft_parameters(self) -> int:
        """Of the model or head of its largest draft worker."""
        workers = self.status["workers"]
        return max((w["num_parameters"] for w in workers if w["role"] == "draft"), default=0)


@contextmanager
def services(
    urls: Sequence[str], drafters: Sequence[str], heads: Sequence[str], server: ServerOptions
) -> Iterator[list[Service]]:
    """Those at `urls`; without any, one for each drafter, started and stopped.

    Raises what `connect` raises, for drafters and heads that cannot be run before anything starts.
    """
    wanted = wanted_servers(drafters, heads, server)
    connections: list[tuple[str | None, ServerOptions]] = [(None, one) for one in wanted]
    for one in wanted:
        if urls:
            one.refuse_with_url()
        else:
            one.read()
    _refuse_unused(drafters, heads, wanted)
    if urls:
        connections = [(url, server) for url in urls]
    with ExitStack() as running:
        found = []
        for url, options in connections:
            api, address, check = running.enter_context(connect(url, options))
            found.append(Service(api, address, api.status(), check))
        yield found


def wanted_servers(
    drafters: Sequence[str], heads: Sequence[str], server: ServerOptions
) -> list[ServerOptions]:
    """One for each drafter; each gets the first of the heads that it can run."""
    if not drafters:
        return [replace(server, texts={**server.texts, **_first(heads)})]
    kinds = {head: head_kind(head) for head in heads}
    wanted = []
    for drafter in drafters:
        fitting = [head for head in heads if kinds[head] in KINDS_RUN_BY.get(drafter, ())]
        texts = {**server.texts, "drafter": drafter, **_first(fitting)}
        if fitting and len(drafters) > 1:
            terminal.say(f"{drafter} runs the head {fitting[0]}")
        wanted.append(replace(server, texts=texts))
    return wanted


def _first(heads: Sequence[str]) -> dict[str, str]:
    return {"head": heads[0]} if heads else {}


def _refuse_unused(
    drafters: Sequence[str], heads: Sequence[str], wanted: Sequence[ServerOptions]
) -> None:
    """A head that nobody runs is a mistake that would be found out from the figures, or not."""
    for head in heads:
        if not any(one.texts.get("head") == head for one in wanted):
            names = ", ".join(drafters) or "none"
            raise InvalidConfig(
                f"--head {head!r} is for the drafter {head_kind(head)} and would not be run: "
                f"--drafter is {names}"
            )
