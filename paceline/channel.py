"""How gRPC channels and servers are set up, so that both ends agree.

Keepalive finds a peer that is gone or stopped within seconds (its TCP connection may stay up for
hours): workers that a coordinator would wait for, and coordinators whose sequences a worker would
hold. Message sizes are bounded by one constant.
"""

from typing import Any

import grpc

from paceline.api_keys import OwnKey, bearer
from paceline.certificates import Certificates
from paceline.followed_files import FollowedFiles

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""A prompt of a million tokens fits; anything larger is a mistake or an attack."""

KEEPALIVE_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000

_COMMON_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # What ends the connection in the end; left out, it is a minute whatever the other one says.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_COMMON_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.so_reuseport", 0),
]


CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    *_COMMON_OPTIONS,
    # `http_proxy` is meant for the web; few such proxies let other ports through.
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to one server, in the clear; connects when it is first used."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


class Access:
    """How a client gets at servers: what it shows, and whom it trusts, as the files are now."""

    def __init__(
        self,
        key: OwnKey | str = "",
        certificates: FollowedFiles[Certificates] | None = None,
        server_name: str = "",
    ) -> None:
        """With `certificates` channels use TLS; `server_name` is what servers must be called."""
        self._key = key
        self._certificates = certificates
        self._options = CHANNEL_OPTIONS
        if server_name:
            self._options = [*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", server_name)]

    async def look(self) -> None:
        """Take over what has changed in the files, for the channels that are opened next."""
        if isinstance(self._key, OwnKey):
            await self._key.file.look()
        if self._certificates is not None:
            await self._certificates.look()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        if isinstance(self._key, OwnKey):
            return (("authorization", self._key.authorization),)
        return (("authorization", bearer(self._key)),) if self._key else ()

    def open_channel(self, address: str) -> grpc.aio.Channel:
        """A channel to one server; connects when it is first used."""
        if self._certificates is None:
            return open_channel(address)
        shown = self._certificates.value
        credentials = grpc.ssl_channel_credentials(
            shown.ca or None, shown.private_key or None, shown.certificate or None
        )
        return grpc.aio.secure_channel(address, credentials, options=self._options)


PLAIN = Access()
"""Shows nothing, in the clear."""
