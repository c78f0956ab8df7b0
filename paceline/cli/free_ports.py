"""Ports of this machine for processes that are about to be started."""

import socket
from contextlib import ExitStack

from paceline.errors import InvalidConfig

HOST = "127.0.0.1"


def reserve_port(reserved: ExitStack, name: str, port: int) -> int:
    """Check that a port is free, or find one; holds it so that the next call finds another.

    A server may listen on it all the same.
    """
    server = reserved.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((HOST, port))
    except OSError as error:
        raise InvalidConfig(
            f"{name} is {port}, but that port of {HOST} cannot be used ({error.strerror}); "
            "expected a free one, or 0 for any"
        ) from None
    free: int = server.getsockname()[1]
    return free
