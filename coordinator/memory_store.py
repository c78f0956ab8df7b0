"""Records in this process: the whole store where there is no Redis, the copy before it else.

Knows nothing about Redis. The records last written are kept, up to a size and an age.
"""

import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from coordinator.records import Lease, Placement, Resumption, encode_generation, fresh_epoch
from coordinator.requests import FinishReason, Generation
from paceline.errors import InvalidRequest

Value = TypeVar("Value")

RECORD_TTL_S = 3600.0
"""Long enough to come back to an answer, short enough that old ones do not pile up."""

_MAX_RECORD_BYTES = 64 << 20
"""Some ten thousand requests of a thousand tokens each."""
_MAX_SESSIONS = 100_000


class Shelf(Generic[Value]):
    """Values by name. The oldest go after `ttl_s` without a `put`, or when all outgrow `room`."""

    def __init__(
        self,
        ttl_s: float,
        room: int,
        clock: Callable[[], float],
        on_drop: Callable[[Value], None],
    ) -> None:
        self._ttl_s = ttl_s
        self._room = room
        self._clock = clock
        self._on_drop = on_drop
        self._items: OrderedDict[str, tuple[Value, int, float]] = OrderedDict()
        self._used = 0

    def __iter__(self) -> Iterator[Value]:
        return iter([value for value, _, _ in self._items.values()])

    def get(self, name: str) -> Value | None:
        """The value, if it is still here."""
        self._drop_old()
        item = self._items.get(name)
        return item[0] if item else None

    def put(self, name: str, value: Value, size: int = 1) -> None:
        """Keep the value, of a size in the unit of `room`, as the newest."""
        self.remove(name)
        self._items[name] = (value, size, self._clock() + self._ttl_s)
        self._used += size
        self._drop_old()

    def remove(self, name: str) -> None:
        """Forget the value, without `on_drop`."""
        if item := self._items.pop(name, None):
            self._used -= item[1]

    def _drop_old(self) -> None:
        now = self._clock()
        while self._items:
            name, (value, _, expires) = next(iter(self._items.items()))
            if expires > now and (self._used <= self._room or len(self._items) == 1):
                return
            self.remove(name)
            self._on_drop(value)


class MemoryStore:
    """A `SessionStore` that ends with its process.

    `on_drop` hears of every lease whose record had to go; the lease itself goes on working.
    """

    status = "memory"
    num_unwritten = 0

    def __init__(
        self,
        ttl_s: float = RECORD_TTL_S,
        *,
        max_record_bytes: int = _MAX_RECORD_BYTES,
        clock: Callable[[], float] = time.monotonic,
        on_drop: Callable[[Lease], None] = lambda lease: None,
    ) -> None:
        self._leases = Shelf[Lease](ttl_s, max_record_bytes, clock, on_drop)
        self._sessions = Shelf[Placement](ttl_s, _MAX_SESSIONS, clock, lambda placement: None)

    async def open(self, generation: Generation) -> Lease:
        request = generation.request
        if self._leases.get(request.request_id) is not None:
            raise taken(request.request_id)
        lease = Lease(
            request_id=request.request_id,
            session_id=request.session_id,
            epoch=fresh_epoch(),
            body=encode_generation(generation),
        )
        self._keep(lease)
        return lease

    def append(self, lease: Lease, start: int, token_ids: Sequence[int]) -> None:
        if start <= len(lease.token_ids) and self._may_write(lease):
            lease.token_ids[start : start + len(token_ids)] = array("I", token_ids)
            self._keep(lease)

    def place(self, lease: Lease, placement: Placement) -> None:
        if self._may_write(lease):
            lease.placement = placement
            self._keep(lease)

    def finish(self, lease: Lease, reason: FinishReason) -> None:
        if self._may_write(lease):
            lease.finish_reason = reason
            self._keep(lease)

    async def look_up(self, request_id: str) -> Resumption | None:
        held = self._leases.get(request_id)
        return None if held is None else Resumption.of(held)

    async def takeover(self, request_id: str) -> Resumption | None:
        return self.take(request_id, epoch=0)

    async def affinity(self, session_id: str) -> Placement | None:
        return self._sessions.get(session_id)

    def remember_affinity(self, session_id: str, placement: Placement) -> None:
        self._sessions.put(session_id, placement)

    async def aclose(self) -> None:
        """Nothing to write."""

    def leases(self) -> Iterator[Lease]:
        """The leases of all records that are kept, those last written last."""
        return iter(self._leases)

    def find(self, request_id: str) -> Lease | None:
        """The lease of the record, if one is kept."""
        return self._leases.get(request_id)

    def take(self, request_id: str, epoch: int) -> Resumption | None:
        """`takeover` at this epoch, or above the owner's where that is not above it."""
        held = self._leases.get(request_id)
        if held is None:
            return None
        return self.adopt(
            Lease(
                request_id=request_id,
                session_id=held.session_id,
                epoch=epoch if epoch > held.epoch else fresh_epoch(held.epoch),
                body=held.body,
                token_ids=held.token_ids[:],
                finish_reason=held.finish_reason,
                placement=held.placement,
            )
        )

    def adopt(self, lease: Lease) -> Resumption:
        """Keep the record under this lease; whoever had it in this process loses it."""
        resumption = Resumption.of(lease)
        if held := self._leases.get(lease.request_id):
            held.lost = True
        self._keep(lease)
        return resumption

    def forget(self, lease: Lease) -> None:
        """Keep the record no longer, and let its owner know."""
        lease.lost = True
        if self._leases.get(lease.request_id) is lease:
            self._leases.remove(lease.request_id)

    def _may_write(self, lease: Lease) -> bool:
        """False once lost, be it to a request of the same name after the record was dropped."""
        holder = self._leases.get(lease.request_id)
        lease.lost = lease.lost or (holder is not None and holder is not lease)
        return not lease.lost

    def _keep(self, lease: Lease) -> None:
        size = len(lease.body) + 4 * len(lease.token_ids)
        self._leases.put(lease.request_id, lease, size)


def taken(request_id: str) -> InvalidRequest:
    """What a second request under the name of one on record is told."""
    return InvalidRequest(
        f"request_id {request_id!r} is on record already; expected one that has not been used "
        "lately, or resume_from to go on with it.",
        field="request_id",
    )
