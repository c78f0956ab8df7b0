"""Streams that go on where they broke off: the same POST again, with a `Last-Event-ID`.

The ids of events are the numbers of tokens of each choice that the client has by then, divided by
commas. The body must name its request (`request_id`), since that is what is on record.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request

from coordinator.http.completion_body import CompletionBody
from coordinator.http.fields import shown
from coordinator.http.generation_body import GenerationBody
from paceline.errors import InvalidRequest

HEADER = "last-event-id"
EVENT_ID = r"^[0-9]{1,10}(,[0-9]{1,10})*$"

_EVENT_ID = re.compile(EVENT_ID)


def event_id(num_committed: list[int]) -> str:
    """The id of an event behind which a client has so many tokens of each choice."""
    return ",".join(map(str, num_committed))


def resumed_from(request: Request, body: GenerationBody) -> tuple[int, ...] | None:
    """The tokens that the client has of each choice; None: it begins. Raises `InvalidRequest`."""
    last = request.headers.get(HEADER)
    if last is None:
        return None
    if not _EVENT_ID.fullmatch(last):
        raise InvalidRequest(
            f"{HEADER}: is {shown(last)}; expected the id of an event, such as 17 or 17,0,4", HEADER
        )
    if not body.stream:
        raise InvalidRequest(f"{HEADER}: only allowed together with stream: true", HEADER)
    if not body.request_id:
        raise InvalidRequest(
            f"request_id: is missing beside {HEADER}; expected the one that the stream began with",
            "request_id",
        )
    resume_from = tuple(map(int, last.split(",")))
    has_echo = isinstance(body, CompletionBody) and body.echo
    if has_echo and len(resume_from) > 1 and 0 in resume_from:
        raise InvalidRequest(
            f"{HEADER}: is {shown(last)}, which does not tell whether the client has the echo of a "
            "choice of which it has no tokens; expected tokens of every choice",
            HEADER,
        )
    return resume_from


@contextmanager
def naming_the_header() -> Iterator[None]:
    """Lets errors name what the client sent, where gRPC calls it `resume_from`."""
    try:
        yield
    except InvalidRequest as error:
        if error.field != "resume_from":
            raise
        raise InvalidRequest(error.message.replace(error.field, HEADER, 1), HEADER) from error
