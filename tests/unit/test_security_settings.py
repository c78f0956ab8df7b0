"""Nothing listens where strangers come by without being told to."""

from typing import Any

import pytest

from coordinator.config import CoordinatorSettings
from draft_service.config import DraftSettings
from paceline.config import read_settings
from paceline.errors import InvalidConfig
from paceline.security_settings import is_loopback
from target_service.config import TargetSettings

SERVICES: list[tuple[Any, dict[str, str]]] = [
    (CoordinatorSettings, {"targets": "a:1"}),
    (DraftSettings, {}),
    (TargetSettings, {}),
]


@pytest.mark.parametrize(("cls", "options"), SERVICES)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "some-name"])
def test_an_address_that_others_reach_needs_authentication_or_a_word(
    cls: Any, options: dict[str, str], host: str
) -> None:
    options = {**options, "host": host}
    with pytest.raises(InvalidConfig, match="--api-keys-file .* or --allow-unauthenticated true"):
        read_settings(cls, options)
    for way_out in ({"api_keys_file": "/keys"}, {"allow_unauthenticated": "true"}):
        assert read_settings(cls, {**options, **way_out}).host == host


@pytest.mark.parametrize(("cls", "options"), SERVICES)
def test_this_machine_needs_none(cls: Any, options: dict[str, str]) -> None:
    assert is_loopback(read_settings(cls, options).host)
    for host in ("127.0.0.1", "127.3.2.1", "::1", "[::1]", "localhost", "unix:/tmp/socket"):
        assert read_settings(cls, {**options, "host": host}).host == host
