"""Ports of this machine that servers are given before they listen on them."""

import socket

HOST = "127.0.0.1"


def reserve_port() -> socket.socket:
    """A port that nobody else is given until this is closed, also while no server listens on it.

    A socket that is bound to it and does not listen keeps it from everybody who takes any free
    one, and not from a server, which asks for it with SO_REUSEADDR as we do.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((HOST, 0))
    return reserved


def number_of(reserved: socket.socket) -> int:
    """Its port."""
    port: int = reserved.getsockname()[1]
    return port
