"""What is kept of a request so that another coordinator can go on with it.

A record is the request (`encode_generation`), the ids committed so far, who may add to them, how
it ended and where its KV was last. Knows nothing about where records are kept.
The log of ids may lag behind the text that was sent; what it lacks is computed again.
"""

import dataclasses
import json
import sys
import time
from array import array
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from coordinator.requests import FinishReason, Generation, GenerationRequest, Speculation
from coordinator.tools import Tool, ToolChoice
from paceline.errors import NotFound, Unavailable, shown
from paceline.telemetry.names import SESSION_LOAD
from paceline.telemetry.span import current_child


@dataclass(frozen=True, slots=True)
class Placement:
    """The workers that hold the KV of a sequence or session; empty: none known."""

    target: str = ""
    """Address of the target."""
    draft: str = ""
    """Address of the draft."""
    numerics: str = ""
    """The target's digest of numerics, to resume on equal arithmetic."""


@dataclass(eq=False, slots=True)
class Lease:
    """The right to add to one record, until `lost`. Only stores write its fields."""

    request_id: str
    session_id: str
    epoch: int
    """Milliseconds of Unix time, raised by every takeover; the highest may write."""
    body: bytes
    """The request, as `encode_generation` writes it."""
    token_ids: "array[int]" = field(default_factory=lambda: array("I"))
    finish_reason: FinishReason | None = None
    placement: Placement = Placement()
    lost: bool = False
    """Somebody else goes on with the request: stop, and write nothing more."""
    num_recorded: int = -1
    """Leading ids that a shared store is known to hold; -1: not even the request."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """A record, and the lease that it is kept under: of `takeover` the one to go on with."""

    generation: Generation
    """As it was admitted; its counts are zero and its prompt is in token ids."""
    token_ids: tuple[int, ...]
    """Committed so far."""
    finish_reason: FinishReason | None
    """Set when nothing is left to do but to send `token_ids`."""
    placement: Placement
    lease: Lease

    @classmethod
    def of(cls, lease: Lease) -> "Resumption":
        """What is on record under this lease.

        Raises `Unavailable` when another version wrote something this one cannot read.
        """
        return cls(
            generation=decode_generation(lease.request_id, lease.body),
            token_ids=tuple(lease.token_ids),
            finish_reason=lease.finish_reason,
            placement=lease.placement,
            lease=lease,
        )


class SessionStore(Protocol):
    """Records of requests, and where sessions were last answered.

    Nothing here fails or waits longer than a tenth of a second because a store is out of reach.
    A record is forgotten an hour after it was last written.
    """

    @property
    def status(self) -> str:
        """`redis`, `memory`, or `redis (unreachable: in memory for now)`."""

    @property
    def num_unwritten(self) -> int:
        """Records and sessions that a store shared by coordinators does not have as they are."""

    async def open(self, generation: Generation) -> Lease:
        """Start a record. Raises `InvalidRequest` if the `request_id` is on record."""

    def append(self, lease: Lease, start: int, token_ids: Sequence[int]) -> None:
        """Record that the answer's ids from index `start` on are these. Never blocks or raises.

        May be repeated; the ids of an index never change. What would leave a gap, and what comes
        after the lease is lost, is not recorded.
        """

    def place(self, lease: Lease, placement: Placement) -> None:
        """Record where the KV is. Never blocks or raises."""

    def finish(self, lease: Lease, reason: FinishReason) -> None:
        """Record that the answer is complete. Never blocks or raises.

        A request given up before (client gone, error) stays as it is, so that it can be resumed.
        """

    async def look_up(self, request_id: str) -> Resumption | None:
        """What `takeover` would find; whoever has the request keeps it."""

    async def takeover(self, request_id: str) -> Resumption | None:
        """Go on with a recorded request; whoever had it loses it. None: it is not on record.

        Raises `Unavailable` while it may be on record somewhere out of reach.
        """

    async def affinity(self, session_id: str) -> Placement | None:
        """The workers that answered this session last."""

    def remember_affinity(self, session_id: str, placement: Placement) -> None:
        """Record the workers that answer this session now. Never blocks or raises."""

    async def aclose(self) -> None:
        """Write what is still to be written, as far as that takes under a second."""


async def on_record(
    asking: Awaitable[Resumption | None], request_id: str, tenant: str
) -> Resumption:
    """What a store answers; raises `NotFound` where that is nothing.

    Whose a request is that somebody else asks for is not told, nor that there is one.
    """
    with current_child(SESSION_LOAD):
        found = await asking
    if found is None or found.generation.request.tenant != tenant:
        raise NotFound(f"request_id: no request {shown(request_id)} is on record", "request_id")
    return found


def fresh_epoch(previous: int = 0) -> int:
    """An epoch above `previous`, and above all earlier ones wherever clocks agree."""
    return max(time.time_ns() // 1_000_000, previous + 1)


def pack_token_ids(token_ids: Iterable[int]) -> bytes:
    """Four bytes an id, little-endian."""
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_token_ids(packed: bytes) -> "array[int]":
    """The inverse of `pack_token_ids`."""
    token_ids = array("I")
    token_ids.frombytes(packed)
    if sys.byteorder == "big":
        token_ids.byteswap()
    return token_ids


def encode_generation(generation: Generation) -> bytes:
    """All that a resume needs: a line of JSON, then the prompt as `pack_token_ids` writes it."""
    header = {
        "request": _to_values(generation.request),
        "seed": generation.seed,
        "max_tokens": generation.max_tokens,
        "created": generation.created,
        "grammar": generation.grammar,
        "is_chat": generation.is_chat,
        "traceparent": generation.traceparent,
    }
    return json.dumps(header).encode() + b"\n" + pack_token_ids(generation.prompt_token_ids)


def _to_values(request: GenerationRequest) -> dict[str, Any]:
    """A request as JSON, its prompt left out."""
    values = dataclasses.asdict(dataclasses.replace(request, prompt=()))
    return {**values, "tool_choice": request.tool_choice.value}


def decode_generation(request_id: str, body: bytes) -> Generation:
    """The inverse of `encode_generation`. Raises `Unavailable` when it cannot be read."""
    line, _, prompt = body.partition(b"\n")
    prompt_token_ids = tuple(unpack_token_ids(prompt))
    try:
        header = json.loads(line)
        fields = header["request"]
        fields.update(
            prompt=prompt_token_ids,
            stop=tuple(fields["stop"]),
            stop_token_ids=tuple(fields["stop_token_ids"]),
            logit_bias=tuple((token_id, bias) for token_id, bias in fields["logit_bias"]),
            speculation=Speculation(**fields["speculation"]),
            tools=tuple(Tool(**tool) for tool in fields["tools"]),
            tool_choice=ToolChoice(fields["tool_choice"]),
        )
        return Generation(
            request=GenerationRequest(**fields),
            prompt_token_ids=prompt_token_ids,
            seed=header["seed"],
            max_tokens=header["max_tokens"],
            created=header["created"],
            grammar=header["grammar"],
            is_chat=header.get("is_chat", False),
            traceparent=header.get("traceparent", ""),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Unavailable(
            f"The record of request_id {request_id!r} cannot be read by this version: {error!r}."
        ) from error
