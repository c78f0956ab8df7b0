"""The Lua scripts of the session store, which run inside Redis (6.2 and later) as one step each.

KEYS of all three: `…:request`, `…:tokens`, `…:meta` of one request, in one slot. A script that
arrives late or twice, or after a later one of the same owner, does no harm.
"""

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
  if owner < tonumber(epoch) then redis.call('DEL', KEYS[2], KEYS[3]) end
  redis.call('SET', KEYS[1], body)
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
`start` mean that nothing was written and the rest is to be sent from there."""

CREATE = f"if redis.call('EXISTS', KEYS[1]) == 1 then return {EXISTS} end" + WRITE
"""`WRITE`, unless the name is on record."""

TAKEOVER = """
local body = redis.call('GET', KEYS[1])
if not body then return false end
local owner = tonumber(redis.call('HGET', KEYS[3], 'epoch') or 0)
if owner >= tonumber(ARGV[1]) then return owner end
redis.call('HSET', KEYS[3], 'epoch', ARGV[1])
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[2]) end
local known =
  redis.call('HMGET', KEYS[3], 'finish_reason', 'session', 'target', 'draft', 'numerics')
return {owner, body, redis.call('GET', KEYS[2]), unpack(known, 1, 5)}
"""
"""ARGV: epoch, TTL in ms. Returns nil when nothing is on record; the owner's epoch (an integer)
when it is not lower, so that a late takeover cannot undo a newer one; else the previous epoch,
request, packed ids, finish reason, session, target, draft and numerics."""
