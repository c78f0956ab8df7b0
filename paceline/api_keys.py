"""Keys of callers: a file of them to check, or one to show. Never logged, and in no message.

A line is a key or `name: key`; `#` begins a comment. What a caller shows is compared with all keys
by their hashes, in a time that tells nothing. A caller's tenant is the name of its key, so that a
key can be replaced by another of the same name; a key without a name is a tenant by itself.
"""

import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import NamedTuple

from paceline.errors import InvalidConfig, Unauthenticated
from paceline.followed_files import FollowedFiles

MIN_KEY_LENGTH = 16
"""Shorter ones can be guessed."""

_LINE = re.compile(r"(?:([A-Za-z0-9._-]{1,64}):\s*)?([!-9;-~]+)")
"""A key has no blanks and no colon."""


class _Entry(NamedTuple):
    digest: bytes
    tenant: str


class ApiKeys:
    """The keys of a file, as it is now."""

    def __init__(self, path: str) -> None:
        """Read it; raises `InvalidConfig`."""
        self.file = FollowedFiles((path,), lambda content: _entries(path, content))

    def tenant(self, authorization: str | None) -> str:
        """Whose key is in this value of the header `authorization`; raises `Unauthenticated`."""
        if not authorization:
            raise Unauthenticated("no API key was sent; expected `Authorization: Bearer <key>`")
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated("the authorization is not of the form `Bearer <key>`")
        shown, tenant = _digest(key.strip()), None
        for entry in self.file.value:
            if hmac.compare_digest(entry.digest, shown):
                tenant = entry.tenant
        if tenant is None:
            raise Unauthenticated("the API key is not known here")
        return tenant


class OwnKey:
    """The key that this process shows to others, as its file has it now."""

    def __init__(self, path: str) -> None:
        """Read it; raises `InvalidConfig`."""
        self.file = FollowedFiles((path,), lambda content: _only_key(path, content))

    @property
    def authorization(self) -> str:
        """The value of the header `authorization`."""
        return bearer(self.file.value)


def bearer(key: str) -> str:
    """A key as the value of the header `authorization`."""
    return f"Bearer {key}"


def _entries(path: str, content: Sequence[bytes]) -> tuple[_Entry, ...]:
    found: dict[bytes, _Entry] = {}
    for number, name, key in _lines(path, content):
        digest = _digest(key)
        if digest in found:
            raise InvalidConfig(f"line {number} of {path} repeats the key of another line.")
        found[digest] = _Entry(digest, name or f"key-{_tenant_digest(key)}")
    if not found:
        raise InvalidConfig(f"{path} has no key; expected one in each line.")
    return tuple(found.values())


def _only_key(path: str, content: Sequence[bytes]) -> str:
    keys = [key for _, _, key in _lines(path, content)]
    if len(keys) != 1:
        raise InvalidConfig(f"{path} has {len(keys)} keys; expected exactly one.")
    return keys[0]


def _lines(path: str, content: Sequence[bytes]) -> list[tuple[int, str, str]]:
    """Number, name and key of the lines that have one."""
    found = []
    for number, line in enumerate(content[0].decode("utf-8-sig", "replace").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        parts = _LINE.fullmatch(text)
        if parts is None:
            raise InvalidConfig(
                f"line {number} of {path} is not `key` or `name: key`; expected a key of printable "
                "ASCII without blanks and colons, and a name of letters, digits, `.`, `_` and `-`."
            )
        name, key = parts[1] or "", parts[2]
        if len(key) < MIN_KEY_LENGTH:
            raise InvalidConfig(
                f"the key in line {number} of {path} has {len(key)} characters; expected at least "
                f"{MIN_KEY_LENGTH}."
            )
        found.append((number, name, key))
    return found


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), person=b"paceline key").digest()


def _tenant_digest(key: str) -> str:
    """Another hash than the one that is compared: this one is told to workers."""
    data = key.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=8, person=b"paceline tenant").hexdigest()
