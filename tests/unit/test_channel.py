"""gRPC passes over options that it does not know in silence, so their names are checked here."""

from pathlib import Path

import pytest
from grpc._cython import cygrpc

from paceline import channel
from paceline.channel import SERVER_OPTIONS


@pytest.fixture
def channel_options(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """The options that every channel is opened with."""
    seen: list[tuple[str, object]] = []
    monkeypatch.setattr(
        channel.grpc.aio, "insecure_channel", lambda address, options: seen.extend(options)
    )
    channel.open_channel("127.0.0.1:1")
    return seen


def test_grpc_knows_every_option_by_its_name(channel_options: list[tuple[str, object]]) -> None:
    library = Path(cygrpc.__file__).read_bytes()
    for name, _ in (*channel_options, *SERVER_OPTIONS):
        assert name.encode() + b"\0" in library, name


def test_servers_allow_pings_as_often_as_channels_send_them(
    channel_options: list[tuple[str, object]],
) -> None:
    least_ms = dict(SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"]
    assert least_ms < dict(channel_options)["grpc.keepalive_time_ms"]
