"""A server to talk to: the one at --url, or one that runs for as long as a command."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from paceline.cli import terminal
from paceline.cli.api import ApiError, CoordinatorApi
from paceline.cli.local_service import local_service
from paceline.cli.options import ServerOptions

DEATH_DELAY_S = 0.2


class Connection(NamedTuple):
    """A server that answers."""

    api: CoordinatorApi
    url: str
    check: Callable[[], None]
    """Raises `ChildFailed` if the server is ours and has lost what it needs."""


@contextmanager
def connect(url: str | None, server: ServerOptions) -> Iterator[Connection]:
    """Reach the server at `url`, or start one and stop it at the end.

    An `ApiError` that leaves the context gives way to the reason, if that is a dead process.
    """
    api_key = server.api_key(url)
    if url is not None:
        server.refuse_with_url()
        with CoordinatorApi(url, api_key, server.tls_ca_file) as api:
            yield Connection(api, url, check=_nothing)
        return
    settings = server.read_for_one_command()
    with (
        local_service(settings, terminal.messages) as service,
        CoordinatorApi(service.url) as api,
    ):
        try:
            yield Connection(api, service.url, service.check)
        except ApiError:
            # A process closes its connections a moment before its end can be seen.
            time.sleep(DEATH_DELAY_S)
            service.check()
            raise


def _nothing() -> None:
    """Somebody else's server: its processes are not ours to look after."""
