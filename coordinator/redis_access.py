"""What the coordinator shows Redis and its Sentinels, and how it knows the right ones.

Settings and the files that they name; knows no client of Redis. Passwords are in no message.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self
from urllib.parse import SplitResult, urlsplit

from pydantic import model_validator

from paceline.certificates import Certificates, client_certificates
from paceline.config import ServiceSettings, describe_settings
from paceline.errors import InvalidConfig
from paceline.followed_files import FollowedFiles

_TLS_FIELDS = ("redis_tls_ca_file", "redis_tls_certificate_file", "redis_tls_private_key_file")


class RedisSettings(ServiceSettings):
    """Where Redis is, and what it is shown. Files are read anew for every connection."""

    redis_url: str = ""
    """Where sessions are recorded: `redis://host:port/db`; `unix:///path/to/socket`;
    `redis+sentinel://host:port,host:port/service/db`, the addresses being those of Sentinels;
    `redis+cluster://host:port`, any node of a cluster; `rediss` for `redis` means TLS. Empty: in
    memory only."""

    redis_username: str = ""
    """Who to be (ACL). Empty: Redis's user `default`."""

    redis_password_file: str = ""
    """File with the password of that user; in the URL it would be seen by whoever sees settings.
    Empty: none is shown."""

    sentinel_password_file: str = ""
    """File with the password that Sentinels ask for, often the one of Redis. Empty: they ask for
    none."""

    redis_tls_ca_file: str = ""
    """PEM file of the authorities whose certificates Redis and its Sentinels may show. Empty: those
    that the system trusts."""

    redis_tls_certificate_file: str = ""
    """PEM file of the certificate that is shown to a Redis that asks for one (mTLS), as it does
    unless told otherwise."""

    redis_tls_private_key_file: str = ""
    """PEM file of the private key of that certificate."""

    @model_validator(mode="after")
    def _what_redis_is_shown_makes_sense(self) -> Self:
        if bool(self.redis_tls_certificate_file) != bool(self.redis_tls_private_key_file):
            raise ValueError(
                f"{option_of('redis_tls_certificate_file')} and "
                f"{option_of('redis_tls_private_key_file')} belong together, and only one is given"
            )
        try:
            parts = split_url(self.redis_url)
        except ValueError as error:
            raise ValueError(f"{option_of('redis_url')} cannot be used: {error}") from None
        login = ("redis_username", "redis_password_file")
        needs = [("redis_username", "redis_password_file", bool(self.redis_password_file))]
        for field in (*login, "sentinel_password_file", *_TLS_FIELDS):
            needs.append((field, "redis_url", bool(self.redis_url)))
        for field, needed, is_there in needs:
            if getattr(self, field) and not is_there:
                raise ValueError(f"{option_of(field)} needs {option_of(needed)} too")
        for field in login:
            if getattr(self, field) and "@" in parts.netloc:
                raise ValueError(
                    f"{option_of(field)} and a login in {option_of('redis_url')} are two"
                )
        if self.sentinel_password_file and not parts.scheme.endswith("+sentinel"):
            raise ValueError(
                f"{option_of('sentinel_password_file')} is for Sentinels, and "
                f"{option_of('redis_url')} begins with {parts.scheme}://; expected "
                "redis+sentinel:// or rediss+sentinel://"
            )
        for field in _TLS_FIELDS:
            if getattr(self, field) and not parts.scheme.startswith("rediss"):
                raise ValueError(
                    f"{option_of(field)} is for TLS, and {option_of('redis_url')} begins with "
                    f"{parts.scheme}://; expected rediss://, or rediss+ and a kind"
                )
        return self


@dataclass(frozen=True, slots=True)
class RedisAccess:
    """What Redis is shown beside what its URL says, as the files are now."""

    username: str = ""
    password: FollowedFiles[str] | None = None
    sentinel_password: FollowedFiles[str] | None = None
    certificates: FollowedFiles[Certificates] | None = None
    """Shown and trusted over TLS; None: what the system trusts, and none shown."""


PLAIN = RedisAccess()
"""Only what the URL says."""


def access_to_redis(settings: RedisSettings) -> RedisAccess:
    """As the settings say; raises `InvalidConfig` for a file that cannot be used."""
    certificates = None
    if given := [field for field in _TLS_FIELDS if getattr(settings, field)]:
        with _naming(*given):
            certificates = client_certificates(
                settings.redis_tls_certificate_file,
                settings.redis_tls_private_key_file,
                settings.redis_tls_ca_file,
            )
    return RedisAccess(
        settings.redis_username,
        _password(settings, "redis_password_file"),
        _password(settings, "sentinel_password_file"),
        certificates,
    )


def split_url(url: str) -> SplitResult:
    """The parts of a URL; a `ValueError` has nothing of a password in it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError("it is no URL") from None
    if "@" in url and "@" not in parts.netloc and not parts.scheme.startswith("unix"):
        raise ValueError("what is special in a URL has to be percent-encoded before the @")
    return parts


def option_of(field: str) -> str:
    """A setting as messages name it: `--redis-url (PACELINE_REDIS_URL)`."""
    doc = next(doc for doc in describe_settings(RedisSettings) if doc.field == field)
    return f"{doc.option} ({doc.key})"


def _password(settings: RedisSettings, field: str) -> FollowedFiles[str] | None:
    path: str = getattr(settings, field)
    if not path:
        return None

    def parse(content: Sequence[bytes]) -> str:
        try:
            password = content[0].decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise InvalidConfig(f"the file {path} is not UTF-8.") from None
        if not password or "\n" in password:
            raise InvalidConfig(f"the file {path} has not one line; expected a password.")
        return password

    with _naming(field):
        return FollowedFiles((path,), parse)


@contextmanager
def _naming(*fields: str) -> Iterator[None]:
    """Complaints about files say which options name them."""
    try:
        yield
    except InvalidConfig as error:
        options = ", ".join(map(option_of, fields))
        raise InvalidConfig(f"{options} cannot be used: {error.message}") from None
