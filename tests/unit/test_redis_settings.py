"""Settings of Redis that contradict one another, and files that cannot be used."""

from pathlib import Path

import pytest
from authority import Authority

from coordinator.config import CoordinatorSettings
from coordinator.redis_access import RedisSettings, access_to_redis
from paceline.config import read_settings
from paceline.errors import InvalidConfig

PASSWORD = {"redis_password_file": "/password"}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (PASSWORD, r"--redis-password-file \(PACELINE_REDIS_PASSWORD_FILE\) needs --redis-url"),
        ({"redis_tls_ca_file": "/ca"}, "--redis-tls-ca-file .* needs --redis-url"),
        (
            {"redis_url": "redis://host", "redis_username": "me"},
            "--redis-username .* needs --redis-password-file",
        ),
        (
            {"redis_url": "redis://me:secret@host", **PASSWORD},
            "--redis-password-file .* and a login in --redis-url .* are two",
        ),
        (
            {"redis_url": "redis://host", "redis_tls_ca_file": "/ca"},
            "--redis-tls-ca-file .* is for TLS, and --redis-url .* begins with redis://",
        ),
        (
            {"redis_url": "unix:///socket", "redis_tls_ca_file": "/ca"},
            "is for TLS, and --redis-url .* begins with unix://",
        ),
        (
            {"redis_url": "rediss://host", "redis_tls_certificate_file": "/certificate"},
            "--redis-tls-certificate-file .* and --redis-tls-private-key-file .* belong together",
        ),
        (
            {"redis_url": "redis://host", "sentinel_password_file": "/password"},
            "--sentinel-password-file .* is for Sentinels, and --redis-url .* redis://",
        ),
    ],
)
def test_settings_that_contradict_one_another_are_refused(
    given: dict[str, str], complaint: str
) -> None:
    with pytest.raises(InvalidConfig, match=complaint) as caught:
        read_settings(CoordinatorSettings, {"targets": "a:1", **given})
    assert "secret" not in caught.value.message


def test_all_of_them_together_are_fine(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("coordinator", "coordinator")
    password = tmp_path / "password"
    password.write_text("pass word\r\n")
    given = {
        "redis_url": "rediss+sentinel://a:1,b:2/service/3",
        "redis_username": "me",
        "redis_password_file": str(password),
        "sentinel_password_file": str(password),
        "redis_tls_ca_file": authority.ca_file,
        "redis_tls_certificate_file": own.certificate,
        "redis_tls_private_key_file": own.private_key,
    }
    access = access_to_redis(read_settings(CoordinatorSettings, {"targets": "a:1", **given}))
    assert access.password is not None
    assert access.password.value == "pass word"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read: No such file"),
        (b"", "not one line"),
        (b"\n", "not one line"),
        (b"secret\nsecret\n", "not one line"),
        (b"secret\xff", "not UTF-8"),
    ],
)
@pytest.mark.parametrize("field", ["redis_password_file", "sentinel_password_file"])
def test_a_file_without_a_password_is_refused(
    field: str, content: bytes | None, complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    settings = RedisSettings(**{"redis_url": "redis+sentinel://a/service", field: str(path)})
    option = "--" + field.replace("_", "-")
    with pytest.raises(InvalidConfig, match=f"^{option} .*{path}.*{complaint}") as caught:
        access_to_redis(settings)
    assert "secret" not in caught.value.message


def test_an_authority_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    settings = RedisSettings(redis_url="rediss://a", redis_tls_ca_file=str(tmp_path / "none"))
    with pytest.raises(InvalidConfig, match="^--redis-tls-ca-file .*none cannot be read"):
        access_to_redis(settings)
