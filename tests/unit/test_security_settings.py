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
    mtls = dict.fromkeys(
        ("tls_certificate_file", "tls_private_key_file", "tls_client_ca_file"), "/file"
    )
    for way_out in ({"api_keys_file": "/keys"}, mtls, {"allow_unauthenticated": "true"}):
        assert read_settings(cls, {**options, **way_out}).host == host


@pytest.mark.parametrize(("cls", "options"), SERVICES)
def test_this_machine_needs_none(cls: Any, options: dict[str, str]) -> None:
    assert is_loopback(read_settings(cls, options).host)
    for host in ("127.0.0.1", "127.3.2.1", "::1", "[::1]", "localhost", "unix:/tmp/socket"):
        assert read_settings(cls, {**options, "host": host}).host == host.strip("[]")


@pytest.mark.parametrize(("cls", "options"), SERVICES)
def test_settings_of_tls_that_do_not_make_sense_together_are_refused(
    cls: Any, options: dict[str, str]
) -> None:
    for given, message in (
        ({"tls_certificate_file": "/a"}, "belong together"),
        ({"tls_private_key_file": "/a"}, "belong together"),
        ({"tls_client_ca_file": "/a"}, "needs --tls-certificate-file too"),
    ):
        with pytest.raises(InvalidConfig, match=message):
            read_settings(cls, {**options, **given})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"worker_tls_certificate_file": "/a"}, "belong together"),
        ({"worker_tls_server_name": "target.svc"}, "--worker-tls-ca-file .* is required"),
    ],
)
def test_tls_to_workers_needs_to_know_whom_to_trust(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        read_settings(CoordinatorSettings, {"targets": "a:1", **given})
