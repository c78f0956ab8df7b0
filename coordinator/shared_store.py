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
import time
from collections.abc import Sequence
from dataclasses import astuple
from itertools import islice
from typing import Any, NoReturn, Protocol

from coordinator.memory_store import RECORD_TTL_S, MemoryStore, taken
from coordinator.record_scripts import (
    ABSENT,
    CREATE,
    EXISTS,
    STALE,
    WRITE,
    lease_of,
    look_up_command,
    session_key,
    takeover_command,
    write_command,
)
from coordinator.records import Lease, Placement, Resumption, fresh_epoch
from coordinator.requests import FinishReason, Generation
from paceline.errors import Unavailable, shown

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
    """Commands to the shared store. `ask` and `send` raise `Away`; `trouble` then says why.

    `ask` is for requests and refuses sooner: when `is_away` is false, `send` may still do.
    """

    @property
    def trouble(self) -> str: ...
    @property
    def is_away(self) -> bool: ...
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
        self._closing = False
        self._writer: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, or find out why not, and begin to write behind."""
        await self._link.probe()
        self._writer = asyncio.create_task(self._write_behind(), name="session-store-writer")

    @property
    def status(self) -> str:
        trouble = self._link.trouble
        return f"redis ({trouble}: in memory for now)" if trouble else "redis"

    @property
    def num_unwritten(self) -> int:
        return len(self._dirty) + len(self._dirty_sessions)

    async def open(self, generation: Generation) -> Lease:
        lease = await self._memory.open(generation)
        try:
            held = await self._ask(write_command(CREATE, lease, self._ttl_ms))
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

    async def look_up(self, request_id: str) -> Resumption | None:
        held = await self._memory.look_up(request_id)
        try:
            reply = await self._ask(look_up_command(request_id))
        except Away:
            return held or self._cannot_tell(request_id)
        # What an owner in this process has said is on record sooner here.
        if reply is None or (held is not None and held.lease.epoch >= reply[0]):
            return held
        return Resumption.of(lease_of(request_id, reply[0], reply))

    async def takeover(self, request_id: str) -> Resumption | None:
        owner = 0
        while True:
            held = self._memory.find(request_id)
            epoch = fresh_epoch(max(owner, held.epoch if held else 0))
            try:
                reply = await self._ask(takeover_command(request_id, epoch, self._ttl_ms))
            except Away:
                return self._take(request_id, epoch) or self._cannot_tell(request_id)
            held = self._memory.find(request_id)
            if isinstance(reply, int):
                owner = reply
            elif held is None or held.epoch < epoch:
                break  # else another takeover in this process came in between
        if reply is not None and (held is None or held.epoch < reply[0]):
            return self._memory.adopt(lease_of(request_id, epoch, reply))
        return self._take(request_id, epoch)

    async def affinity(self, session_id: str) -> Placement | None:
        if session_id not in self._dirty_sessions:
            with contextlib.suppress(Away):
                stored = await self._ask(("GET", session_key(session_id)))
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
        self._closing = True
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait((self._writer,))
        deadline = time.monotonic() + _CLOSE_BUDGET_S
        with contextlib.suppress(Away):
            while (self._dirty or self._dirty_sessions) and time.monotonic() < deadline:
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

    def _take(self, request_id: str, epoch: int) -> Resumption | None:
        resumption = self._memory.take(request_id, epoch)
        if resumption is not None:
            self._touch(resumption.lease)
        return resumption

    def _cannot_tell(self, request_id: str) -> NoReturn:
        raise Unavailable(
            f"The record of request_id {shown(request_id)} cannot be looked up, since the "
            f"session store is {self.status}; try again in a second.",
            retry_after_s=_PROBE_INTERVAL_S,
        )

    async def _write_behind(self) -> None:
        # A flag too: the `wait_for` inside redis can swallow a cancellation (before Python 3.12).
        while not self._closing:
            try:
                if self._link.is_away:
                    await self._wait_for_return()
                else:
                    idle_s = _PROBE_INTERVAL_S if self._link.trouble else _IDLE_PROBE_S
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(idle_s):
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
        if not self._link.is_away:
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
            commands.append(("SET", session_key(session_id), value, "PX", self._ttl_ms))
        try:
            replies = await self._link.send(commands) if commands else []
            if not commands or self._link.trouble:
                await self._link.probe()
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
                commands.append(write_command(WRITE, lease, self._ttl_ms))
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
