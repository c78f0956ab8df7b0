"""The errors that Paceline raises on purpose.

    PacelineError
    ├── InvalidConfig          a setting, model or checkpoint is wrong; raised before listening
    ├── InvalidRequest         a request is wrong            400  INVALID_ARGUMENT
    ├── Unauthenticated        no key, or an unknown one     401  UNAUTHENTICATED
    ├── NotFound               no such model or record       404  NOT_FOUND
    ├── Overloaded             no room now; try again        429  RESOURCE_EXHAUSTED
    └── Unavailable            no worker can answer          503  UNAVAILABLE
        └── Draining           this process shuts down

Every message is a sentence that names the field or key, its value and what was expected. `reason`
says the same to programs, in a word of `protos/paceline/v1/coordinator.proto`.
"""

_MAX_SHOWN = 100


def shown(value: object) -> str:
    """A value as a message tells it, cut to a length that fits there (gRPC drops longer ones)."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


class PacelineError(Exception):
    """Base of all errors below."""

    reason = ""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidConfig(PacelineError):
    """A setting, model or checkpoint cannot be used."""


class InvalidRequest(PacelineError):
    """A request cannot be answered as it is; `field` names what is wrong with it."""

    reason = "INVALID_REQUEST"

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class Unauthenticated(PacelineError):
    """The caller has not said who it is."""


class NotFound(PacelineError):
    """What was asked for does not exist; `field` names where it was asked for."""

    reason = "NOT_FOUND"

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class Overloaded(PacelineError):
    """There is no room at the moment; `retry_after_s` is a hint in seconds."""

    reason = "OVERLOADED"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(PacelineError):
    """Nobody can answer at the moment; `retry_after_s` is a hint in seconds."""

    reason = "UNAVAILABLE"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Draining(Unavailable):
    """This process shuts down; another one can answer, or go on with the answer."""

    reason = "DRAINING"
