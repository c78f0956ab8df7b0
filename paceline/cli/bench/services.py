"""The services that one benchmark compares: started for it, one for each drafter, or running.

They run side by side and take turns, so that each is measured on the same machine at the same time
as the others. A service that is not asked computes nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from paceline.cli.api import CoordinatorApi
from paceline.cli.connection import connect
from paceline.cli.options import ServerOptions


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
    urls: Sequence[str], drafters: Sequence[str], server: ServerOptions
) -> Iterator[list[Service]]:
    """Those at `urls`; without any, one for each drafter, started and stopped.

    Raises what `connect` raises, for a drafter that is not known before anything is started.
    """
    wanted = [
        replace(server, texts={**server.texts, "drafter": drafter}) for drafter in drafters
    ] or [server]
    connections: list[tuple[str | None, ServerOptions]] = [(None, one) for one in wanted]
    for one in wanted:
        if urls:
            one.refuse_with_url()
        else:
            one.read()
    if urls:
        connections = [(url, server) for url in urls]
    with ExitStack() as running:
        found = []
        for url, options in connections:
            api, address, check = running.enter_context(connect(url, options))
            found.append(Service(api, address, api.status(), check))
        yield found
