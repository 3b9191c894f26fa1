-- Keeps the overrides that are set at runtime, one field of a hash for each, and tells replicas when they change.
--
-- KEYS[1]: the hash. Its field '' has the version of the whole set: a number, a space and a mark. Its field 'changes' has the last
-- changes, the oldest first: for each its number I6, the mark of the version before it I7, the bytes of the rest I2; then for each name
-- that it wrote or removed its length I2 and the name. Every other field has the version that wrote it, its time, its expiry or 0, and
-- what it says, with spaces between the first four. Times are microseconds.
-- KEYS[2]: where a copy is put together, before it takes the place of the hash.
-- ARGV to read: 'read'; the known version, or 'any'; a cursor; about how many fields to give.
-- Reply: the time and the version. Then, unless the version is the known one, the number of fields but 'changes'. Then, if the last
-- changes tell what has changed since, those fields with their values, or nil. Else the next cursor, and fields with their values.
-- ARGV to change: 'change'; the known version; the next number; when the record expires: '0' for never, '=' and a time, or '+' and
-- a delay; the field to write, or ''; what it says; fields to remove.
-- Reply: the time; then, unless the version is another one than the known, the new version and the expiry.
-- ARGV to restore: 'copy'; fields and their values, which are added to the copy. Then 'restore'; the version of the copy.
-- Reply: the time.
--
-- Invariants: the first write of a change has the new version, and it is one command. So where Redis refuses a write, no record was
-- changed unless the version was, too. The hash has no expiry. A copy has one until it takes the hash's place. It has no changes.
local COPY_LIFETIME = 60000
-- Maximum number of bytes of the last changes, some 400 of short names. Of more, the older half is forgotten.
local CHANGES_BYTES_MAX = 16384
local CHANGES, HEAD = 'changes', '<I6I7I2'
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
local found = redis.call('HGET', KEYS[1], CHANGES)
local changes = found or ''
local function number_of(text)
  return tonumber(string.match(text, '^(%d+) ')) or 0
end

-- The names that have changed since this version, each once; nil if that is not known. A change of which nothing is remembered, such as
-- one of an earlier release, leaves a gap among the numbers.
local function names_since(known)
  local number, mark = string.match(known, '^(%d+) (%d+)$')
  local at, names, seen = 1, nil, {}
  local last_number = tonumber(number)
  while at <= #changes do
    local changed, before, size = struct.unpack(HEAD, changes, at)
    at = at + struct.size(HEAD)
    if names and changed ~= last_number + 1 then
      return nil
    elseif changed == number + 1 and before == tonumber(mark) then
      names = {}
    end
    last_number = names and changed or last_number
    local last = at + size
    while names and at < last do
      local name = struct.unpack('<I2c0', changes, at)
      at = at + 2 + #name
      names[#names + 1], seen[name] = not seen[name] and name or nil, true
    end
    at = last
  end
  return last_number == number_of(version) and names or nil
end

local function read()
  if version == ARGV[2] then
    return {now, version}
  end
  local fields = redis.call('HLEN', KEYS[1]) - (found and 1 or 0)
  local known, names = pcall(names_since, ARGV[3] == '0' and ARGV[2] or 'any')
  if known and names then
    local values = {}
    for index, name in ipairs(names) do
      values[2 * index - 1], values[2 * index] = name, redis.call('HGET', KEYS[1], name)
    end
    return {now, version, fields, values}
  end
  local page = redis.call('HSCAN', KEYS[1], ARGV[3], 'COUNT', ARGV[4])
  return {now, version, fields, page[1], page[2]}
end

local function later_half()
  local at = 1
  while at <= #changes / 2 do
    local _, _, size = struct.unpack(HEAD, changes, at)
    at = at + struct.size(HEAD) + size
  end
  return string.sub(changes, at)
end

-- The last changes with this one.
local function changes_with_this()
  local names = ''
  for index = 5, #ARGV do
    -- The one before them says something else.
    if index ~= 6 and ARGV[index] ~= '' then
      names = names .. struct.pack('<I2c0', #ARGV[index], ARGV[index])
    end
  end
  local mark = tonumber(string.match(version, ' (%d+)$') or 0)
  local change, kept = struct.pack(HEAD, ARGV[3], mark, #names) .. names, changes
  if #kept + #change > CHANGES_BYTES_MAX then
    local known, later = pcall(later_half)
    kept = known and #later + #change <= CHANGES_BYTES_MAX and later or ''
  end
  return #change <= CHANGES_BYTES_MAX and kept .. change or ''
end

if what == 'read' then
  return read()
end
if what == 'change' then
  if version ~= ARGV[2] then
    return {now}
  end
  changes, version = changes_with_this(), ARGV[3] .. ' ' .. now
  local kind, expiry = string.sub(ARGV[4], 1, 1), string.sub(ARGV[4], 2)
  if kind == '0' then
    expiry = '0'
  elseif kind == '+' then
    expiry = string.format('%.0f', now + expiry)
  end
  if ARGV[5] == '' then
    redis.call('HSET', KEYS[1], '', version, CHANGES, changes)
  else
    local value = table.concat({ARGV[3], now, expiry, ARGV[6]}, ' ')
    redis.call('HSET', KEYS[1], '', version, CHANGES, changes, ARGV[5], value)
  end
  for index = 7, #ARGV do
    redis.call('HDEL', KEYS[1], ARGV[index])
  end
  return {now, version, expiry}
end
if number_of(version) < number_of(ARGV[2]) then
  redis.call('HSET', KEYS[2], '', ARGV[2])
  redis.call('PERSIST', KEYS[2])
  redis.call('RENAME', KEYS[2], KEYS[1])
end
return {now}
