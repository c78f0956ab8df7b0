"""Why Redis is not in use, in the few words that `/status`, the log and a metric show.

One of the modules that import redis. The words name no password and no address, and are few, so
that they can be a metric's label: what follows a colon is not part of that.
"""

import socket
from collections.abc import Iterator

from redis import exceptions

FAILURES = (exceptions.RedisError, exceptions.RedisClusterException, OSError)
"""What a call to Redis may raise."""

# By what OpenSSL says of it: redis-py takes that over, but does not always tell whose error it was.
_TLS_WORDS = [
    ("CERTIFICATE_VERIFY_FAILED", "certificate not trusted"),
    ("_ALERT_", "certificate refused"),
    ("[SSL: ", "no TLS there"),
]
_WORDS: list[tuple[type[BaseException], str]] = [
    (exceptions.AuthenticationError, "password refused"),
    (exceptions.NoPermissionError, "permission refused"),
    (exceptions.MovedError, "part of a cluster: use redis+cluster://"),
    (exceptions.ClusterDownError, "cluster down"),
    (exceptions.ReadOnlyError, "a replica"),
    (exceptions.BusyLoadingError, "loading its data"),
    (socket.gaierror, "name not found"),
]
"""The first that is met on the way from an error to its cause counts."""


class NoPrimary(exceptions.ConnectionError):
    """No Sentinel names a primary that is up."""

    def __init__(self, trouble: str, reason: str) -> None:
        super().__init__(reason)
        self.trouble = trouble


def trouble_of(error: BaseException) -> str:
    """What is wrong, in a word or two."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, NoPrimary):
            return cause.trouble
        for kind, words in _WORDS:
            if isinstance(cause, kind):
                return words
        if "[SSL: " in str(cause):
            return next(words for sign, words in _TLS_WORDS if sign in str(cause))
    for cause in causes:
        if isinstance(cause, exceptions.ResponseError):
            return f"{type(cause).__name__}: {cause}"[:80].splitlines()[0]
    return "unreachable"


def reason_of(error: BaseException) -> str:
    """The same for the log, at length."""
    return str(error) or "no answer in time"  # a TimeoutError says nothing


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, then what led to it: what went wrong in connecting comes as a ConnectionError."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
