"""How gRPC channels and servers are set up, so that both ends agree.

Keepalive finds a peer that is gone or stopped within seconds (its TCP connection may stay up for
hours); message sizes are bounded by one constant.
"""

from typing import Any

import grpc

from paceline.api_keys import OwnKey

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""A prompt of a million tokens fits; anything larger is a mistake or an attack."""

KEEPALIVE_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000

_COMMON_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_COMMON_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.so_reuseport", 0),
]


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to one server; connects when it is first used."""
    return grpc.aio.insecure_channel(
        address,
        options=[
            *_COMMON_OPTIONS,
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            # `http_proxy` is meant for the web; few such proxies let other ports through.
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 2_000),
        ],
    )


class Access:
    """How a client gets at servers: the key that it shows, as its file has it now."""

    def __init__(self, key: OwnKey | None = None) -> None:
        self._key = key

    async def look(self) -> None:
        """Take over what has changed in the files, for the channels that are opened next."""
        if self._key is not None:
            await self._key.file.look()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        return () if self._key is None else (("authorization", self._key.authorization),)

    def open_channel(self, address: str) -> grpc.aio.Channel:
        """A channel to one server; connects when it is first used."""
        return open_channel(address)


PLAIN = Access()
"""Shows nothing."""
