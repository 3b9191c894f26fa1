-- Keeps the overrides that are set at runtime, one field of a hash for each, and tells replicas when they change.
--
-- KEYS[1]: the hash. Its field '' has the version of the whole set: a number, a space and a mark. Every other field has the version
-- that wrote it, its time, its expiry or 0, and what it says, with spaces between the first four. Times are microseconds.
-- KEYS[2]: where a copy is put together, before it takes the place of the hash.
-- ARGV to read: 'read'; the known version, or 'any'; a cursor; about how many fields to give.
-- Reply: the time and the version; then, unless the version is the known one, the number of fields with that of the version, the
-- next cursor, and fields with their values.
-- ARGV to change: 'change'; the known version; the next number; when the record expires: '0' for never, '=' and a time, or '+' and
-- a delay; the field to write, or ''; what it says; fields to remove.
-- Reply: the time; then, unless the version is another one than the known, the new version and the expiry.
-- ARGV to restore: 'copy'; fields and their values, which are added to the copy. Then 'restore'; the version of the copy.
-- Reply: the time.
--
-- Invariants: the first write of a change has the new version, and it is one command. So where Redis refuses a write, no record was
-- changed unless the version was, too. The hash has no expiry. A copy has one until it takes the hash's place.
local COPY_LIFETIME = 60000
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
local what = ARGV[1]
if what == 'copy' then
  redis.call('HSET', KEYS[2], unpack(ARGV, 2))
  redis.call('PEXPIRE', KEYS[2], COPY_LIFETIME)
  return {now}
end
local version = redis.call('HGET', KEYS[1], '') or ''
if not string.match(version, '^%d+ %d+$') then
  -- It is not ours, so that the next change or restoring may replace it.
  version = ''
end
if what == 'read' then
  if version == ARGV[2] then
    return {now, version}
  end
  local page = redis.call('HSCAN', KEYS[1], ARGV[3], 'COUNT', ARGV[4])
  return {now, version, redis.call('HLEN', KEYS[1]), page[1], page[2]}
end
if what == 'change' then
  if version ~= ARGV[2] then
    return {now}
  end
  version = ARGV[3] .. ' ' .. now
  local kind, expiry = string.sub(ARGV[4], 1, 1), string.sub(ARGV[4], 2)
  if kind == '0' then
    expiry = '0'
  elseif kind == '+' then
    expiry = string.format('%.0f', now + expiry)
  end
  if ARGV[5] == '' then
    redis.call('HSET', KEYS[1], '', version)
  else
    local value = table.concat({ARGV[3], now, expiry, ARGV[6]}, ' ')
    redis.call('HSET', KEYS[1], '', version, ARGV[5], value)
  end
  for index = 7, #ARGV do
    redis.call('HDEL', KEYS[1], ARGV[index])
  end
  return {now, version, expiry}
end
local function number_of(text)
  return tonumber(string.match(text, '^(%d+) ')) or 0
end
if number_of(version) < number_of(ARGV[2]) then
  redis.call('HSET', KEYS[2], '', ARGV[2])
  redis.call('PERSIST', KEYS[2])
  redis.call('RENAME', KEYS[2], KEYS[1])
end
return {now}
