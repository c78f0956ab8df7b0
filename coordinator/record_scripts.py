"""What the shared store says to Redis (6.2 and later): Lua scripts, and the commands that run them.

A script runs as one step. Its KEYS are `…:request`, `…:tokens` and `…:meta` of one request, in one
slot of a cluster. One that arrives late or twice, or after a later one of the same owner, does no
harm. Knows no client and no connection.
"""

from typing import Any

from coordinator.records import Lease, Placement, pack_token_ids, unpack_token_ids
from coordinator.requests import FinishReason

STALE = -1
"""Somebody else owns the record now."""
ABSENT = -2
"""The record is gone, or older than the owner: write it again from its request on."""
EXISTS = -3
"""The name is on record."""

WRITE = f"""
local epoch, ttl, start, ids, body, finish = unpack(ARGV)
local owner = tonumber(redis.call('HGET', KEYS[3], 'epoch') or 0)
if owner > tonumber(epoch) then return {STALE} end
if body ~= '' then
  redis.call('SET', KEYS[1], body)
  if owner < tonumber(epoch) then redis.call('DEL', KEYS[2], KEYS[3]) end
elseif owner < tonumber(epoch) or redis.call('EXISTS', KEYS[1]) == 0 then
  return {ABSENT}
end
local held = redis.call('STRLEN', KEYS[2]) / 4
if held < tonumber(start) then return held end
held = redis.call('SETRANGE', KEYS[2], 4 * start, ids) / 4
redis.call('HSET', KEYS[3], 'epoch', epoch, 'committed', held, unpack(ARGV, 7))
if finish == '' then
  redis.call('HSETNX', KEYS[3], 'state', 'running')
else
  redis.call('HSET', KEYS[3], 'state', 'finished', 'finish_reason', finish)
end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ttl) end
return held
"""
"""ARGV: epoch, TTL in ms, index of the first id, packed ids, request or '', finish reason or '',
then further fields of the hash and their values. Returns the number of ids on record; fewer than
`start` mean that nothing was written and the rest is to be sent from there. What it writes first
has to take memory: behind a DEL, a full Redis would let everything pass."""

CREATE = f"if redis.call('EXISTS', KEYS[1]) == 1 then return {EXISTS} end" + WRITE
"""`WRITE`, unless the name is on record."""

_READ = """
local body = redis.call('GET', KEYS[1])
if not body then return false end
local owner = tonumber(redis.call('HGET', KEYS[3], 'epoch') or 0)
"""
_RECORD = """
local known =
  redis.call('HMGET', KEYS[3], 'finish_reason', 'session', 'target', 'draft', 'numerics')
return {owner, body, redis.call('GET', KEYS[2]), unpack(known, 1, 5)}
"""
LOOK_UP = _READ + _RECORD
"""Returns nil when nothing is on record; else the owner's epoch, request, packed ids, finish
reason, session, target, draft and numerics."""

TAKEOVER = f"""{_READ}
if owner >= tonumber(ARGV[1]) then return owner end
redis.call('HSET', KEYS[3], 'epoch', ARGV[1])
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[2]) end
{_RECORD}"""
"""ARGV: epoch, TTL in ms. Returns what `LOOK_UP` does, or the owner's epoch (an integer) when it is
not lower, so that a late takeover cannot undo a newer one."""


def write_command(script: str, lease: Lease, ttl_ms: int) -> tuple[Any, ...]:
    """`WRITE` or `CREATE` of what Redis is not known to hold."""
    keys = _keys(lease.request_id)
    start = max(lease.num_recorded, 0)
    return (
        *("EVAL", script, len(keys), *keys),
        *(lease.epoch, ttl_ms, start, pack_token_ids(lease.token_ids[start:])),
        lease.body if lease.num_recorded < 0 else b"",
        lease.finish_reason.value if lease.finish_reason else b"",
        *("session", _name(lease.session_id)),
        *("target", lease.placement.target),
        *("draft", lease.placement.draft),
        *("numerics", lease.placement.numerics),
    )


def look_up_command(request_id: str) -> tuple[Any, ...]:
    """`LOOK_UP`."""
    keys = _keys(request_id)
    return ("EVAL", LOOK_UP, len(keys), *keys)


def takeover_command(request_id: str, epoch: int, ttl_ms: int) -> tuple[Any, ...]:
    """`TAKEOVER` at this epoch."""
    keys = _keys(request_id)
    return ("EVAL", TAKEOVER, len(keys), *keys, epoch, ttl_ms)


def lease_of(request_id: str, epoch: int, reply: list[Any]) -> Lease:
    """The lease at this epoch that a successful `TAKEOVER` or `LOOK_UP` tells of."""
    _, body, packed, finish_reason, session_id, *placement = reply
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


def session_key(session_id: str) -> bytes:
    """Where the `Placement` of a session is, as a JSON list of its fields."""
    return b"{paceline:session:" + _name(session_id) + b"}"


def _keys(request_id: str) -> tuple[bytes, bytes, bytes]:
    record = b"{paceline:" + _name(request_id) + b"}"
    return record + b":request", record + b":tokens", record + b":meta"


def _name(client_given: str) -> bytes:
    # A client's JSON may hold half of a surrogate pair, which strict UTF-8 refuses.
    return client_given.encode("utf-8", "surrogatepass")
