"""Records that coordinators share, so that another one can go on when this one is gone.

Every change goes to memory first and is written behind: one task sends what has changed every
20 ms, through a script that refuses whoever has lost the lease. The shared store helps and never
decides: while it is out of reach, requests go on in memory, and what it missed is written when it
is back. Knows the scripts, not the client that runs them.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, astuple
from itertools import islice
from typing import Any, NoReturn, Protocol

from coordinator.memory_store import RECORD_TTL_S, MemoryStore, taken
from coordinator.record_scripts import ABSENT, CREATE, EXISTS, STALE, TAKEOVER, WRITE
from coordinator.records import (
    Lease,
    Placement,
    Resumption,
    fresh_epoch,
    pack_token_ids,
    unpack_token_ids,
)
from coordinator.requests import FinishReason, Generation
from paceline.errors import Unavailable

log = logging.getLogger(__name__)

_FLUSH_INTERVAL_S = 0.02
_PROBE_INTERVAL_S = 1.0
"""How long a store that did not answer is left alone."""
_IDLE_PROBE_S = 5.0
"""So that `status` is true even when there is nothing to write."""
_CLOSE_BUDGET_S = 1.0
_BATCH_RECORDS = 256
_BATCH_BYTES = 1 << 20
_MAX_WAITING_SESSIONS = 10_000


class Away(Exception):
    """The shared store is out of reach at the moment."""


class Link(Protocol):
    """Commands to the shared store. `ask` and `send` raise `Away`; `trouble` then says why."""

    @property
    def trouble(self) -> str: ...
    async def ask(self, *command: Any) -> Any: ...
    async def send(self, commands: list[tuple[Any, ...]]) -> list[Any]: ...
    async def probe(self) -> None: ...
    async def aclose(self) -> None: ...


class SharedStore:
    """A `SessionStore` in Redis, with memory before it."""

    def __init__(self, link: Link, ttl_s: float = RECORD_TTL_S) -> None:
        self._link = link
        self._ttl_ms = int(ttl_s * 1000)
        self._memory = MemoryStore(ttl_s, on_drop=self._give_up)
        self._dirty: dict[Lease, None] = {}
        self._dirty_sessions: dict[str, Placement] = {}
        self._changed = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, or find out why not, and begin to write behind."""
        await self._link.probe()
        self._writer = asyncio.create_task(self._write_behind(), name="session-store-writer")

    @property
    def status(self) -> str:
        trouble = self._link.trouble
        return f"redis ({trouble}: in memory for now)" if trouble else "redis"

    async def open(self, generation: Generation) -> Lease:
        lease = await self._memory.open(generation)
        try:
            held = await self._ask(self._write(CREATE, lease))
        except Away:
            self._touch(lease)
            return lease
        if held == EXISTS:
            self._memory.forget(lease)
            raise taken(lease.request_id)
        lease.num_recorded = held
        return lease

    def append(self, lease: Lease, start: int, token_ids: Sequence[int]) -> None:
        self._memory.append(lease, start, token_ids)
        self._touch(lease)

    def place(self, lease: Lease, placement: Placement) -> None:
        self._memory.place(lease, placement)
        self._touch(lease)

    def finish(self, lease: Lease, reason: FinishReason) -> None:
        self._memory.finish(lease, reason)
        self._touch(lease)

    async def takeover(self, request_id: str) -> Resumption | None:
        held = self._memory.find(request_id)
        epoch = fresh_epoch(held.epoch if held else 0)
        try:
            reply = await self._ask_takeover(request_id, epoch)
            while isinstance(reply, int):
                epoch = fresh_epoch(reply)
                reply = await self._ask_takeover(request_id, epoch)
        except Away:
            return self._take(request_id, epoch) or self._cannot_tell(request_id)
        held = self._memory.find(request_id)
        if reply is not None and (held is None or held.epoch < reply[0]):
            return self._memory.adopt(_lease(request_id, epoch, *reply[1:]))
        return self._take(request_id, epoch)

    async def affinity(self, session_id: str) -> Placement | None:
        if session_id not in self._dirty_sessions:
            with contextlib.suppress(Away):
                stored = await self._ask(("GET", _session_key(session_id)))
                if stored is not None:
                    return Placement(*json.loads(stored))
        return await self._memory.affinity(session_id)

    def remember_affinity(self, session_id: str, placement: Placement) -> None:
        self._memory.remember_affinity(session_id, placement)
        self._dirty_sessions[session_id] = placement
        if len(self._dirty_sessions) > _MAX_WAITING_SESSIONS:
            del self._dirty_sessions[next(iter(self._dirty_sessions))]
        self._changed.set()

    async def aclose(self) -> None:
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait((self._writer,))
        with contextlib.suppress(TimeoutError, Away):
            async with asyncio.timeout(_CLOSE_BUDGET_S):
                while self._dirty or self._dirty_sessions:
                    await self._flush()
        await self._link.aclose()

    def _touch(self, lease: Lease) -> None:
        if not lease.lost:
            self._dirty[lease] = None
            self._changed.set()

    def _give_up(self, lease: Lease) -> None:
        """Write a record no more that memory has no room for, so that the backlog is bounded."""
        self._dirty.pop(lease, None)

    async def _ask(self, command: tuple[Any, ...]) -> Any:
        try:
            return await self._link.ask(*command)
        except Away:
            self._changed.set()  # wakes the writer, which then looks out for its return
            raise

    async def _ask_takeover(self, request_id: str, epoch: int) -> Any:
        keys = _keys(request_id)
        return await self._ask(("EVAL", TAKEOVER, len(keys), *keys, epoch, self._ttl_ms))

    def _take(self, request_id: str, epoch: int) -> Resumption | None:
        resumption = self._memory.take(request_id, epoch)
        if resumption is not None:
            self._touch(resumption.lease)
        return resumption

    def _cannot_tell(self, request_id: str) -> NoReturn:
        raise Unavailable(
            f"The record of request_id {request_id!r} cannot be looked up, since the session store "
            f"is {self.status}; try again in a second.",
            retry_after_s=_PROBE_INTERVAL_S,
        )

    async def _write_behind(self) -> None:
        while True:
            try:
                if self._link.trouble:
                    await self._wait_for_return()
                else:
                    with contextlib.suppress(TimeoutError):
                        # Not `wait_for`, which can swallow a cancellation (before Python 3.12).
                        async with asyncio.timeout(_IDLE_PROBE_S):
                            await self._changed.wait()
                    await asyncio.sleep(_FLUSH_INTERVAL_S)
                    await self._flush()
            except Away:
                continue
            except Exception:
                log.exception("The session store could not write; it tries again in a second")
                await asyncio.sleep(_PROBE_INTERVAL_S)

    async def _wait_for_return(self) -> None:
        await asyncio.sleep(_PROBE_INTERVAL_S)
        await self._link.probe()
        if not self._link.trouble:
            # It may have come back empty: every record held here is offered again.
            for lease in self._memory.leases():
                self._touch(lease)

    async def _flush(self) -> None:
        """Send the records that have waited longest; without any, see whether all is well."""
        self._changed.clear()
        leases, commands = self._take_batch()
        sessions = dict(islice(self._dirty_sessions.items(), _BATCH_RECORDS))
        for session_id, placement in sessions.items():
            del self._dirty_sessions[session_id]
            value = json.dumps(astuple(placement))
            commands.append(("SET", _session_key(session_id), value, "PX", self._ttl_ms))
        try:
            if commands:
                replies = await self._link.send(commands)
            else:
                await self._link.probe()
                replies = []
        except BaseException:  # cancellation too: what was not answered is still to be written
            for lease in leases:
                self._touch(lease)
            self._dirty_sessions = sessions | self._dirty_sessions
            raise
        for lease, held in zip(leases, replies, strict=False):
            self._settle(lease, held)
        if self._dirty or self._dirty_sessions:
            self._changed.set()

    def _take_batch(self) -> tuple[list[Lease], list[tuple[Any, ...]]]:
        leases: list[Lease] = []
        commands: list[tuple[Any, ...]] = []
        size = 0
        for lease in list(islice(self._dirty, _BATCH_RECORDS)):
            if size > _BATCH_BYTES:
                break
            del self._dirty[lease]
            if not lease.lost:
                leases.append(lease)
                commands.append(self._write(WRITE, lease))
                size += sum(len(part) for part in commands[-1] if isinstance(part, bytes))
        return leases, commands

    def _settle(self, lease: Lease, held: int) -> None:
        """What the script's answer means for the lease."""
        if held == STALE:
            self._memory.forget(lease)
        elif held == ABSENT:
            lease.num_recorded = -1
            self._touch(lease)
        else:
            lease.num_recorded = min(held, len(lease.token_ids))
            if held < len(lease.token_ids):
                self._touch(lease)

    def _write(self, script: str, lease: Lease) -> tuple[Any, ...]:
        keys = _keys(lease.request_id)
        start = max(lease.num_recorded, 0)
        placement = asdict(lease.placement)
        return (
            *("EVAL", script, len(keys), *keys),
            *(lease.epoch, self._ttl_ms, start, pack_token_ids(lease.token_ids[start:])),
            lease.body if lease.num_recorded < 0 else b"",
            lease.finish_reason.value if lease.finish_reason else b"",
            *("session", _name(lease.session_id)),
            *(part for field in placement.items() for part in field),
        )


def _lease(
    request_id: str,
    epoch: int,
    body: bytes,
    packed: bytes | None,
    finish_reason: bytes | None,
    session_id: bytes | None,
    *placement: bytes | None,
) -> Lease:
    """The lease of a record as `TAKEOVER` returns it."""
    token_ids = unpack_token_ids(packed or b"")
    return Lease(
        request_id=request_id,
        session_id=(session_id or b"").decode("utf-8", "surrogatepass"),
        epoch=epoch,
        body=body,
        token_ids=token_ids,
        finish_reason=FinishReason(finish_reason.decode()) if finish_reason else None,
        placement=Placement(*((field or b"").decode() for field in placement)),
        num_recorded=len(token_ids),
    )


def _keys(request_id: str) -> tuple[bytes, bytes, bytes]:
    record = b"{paceline:" + _name(request_id) + b"}"
    return record + b":request", record + b":tokens", record + b":meta"


def _session_key(session_id: str) -> bytes:
    return b"{paceline:session:" + _name(session_id) + b"}"


def _name(client_given: str) -> bytes:
    # A client's JSON may hold half of a surrogate pair, which strict UTF-8 refuses.
    return client_given.encode("utf-8", "surrogatepass")
