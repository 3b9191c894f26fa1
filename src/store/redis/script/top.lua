-- Keeps the list of heaviest keys that a replica publishes, and gives those of all others.
--
-- KEYS[1]: a directory of replicas: 32 letters of the id and 16 digits of the time of its last list, in milliseconds, for each.
-- Beside it are the list of each replica, under the directory's name, a colon and the id, and the secret of all replicas.
-- ARGV to publish: 'publish'; the id of the replica; how long its list counts, in milliseconds; the most replicas to keep; a
-- secret to use if there is none yet; how long a secret stays unused, in milliseconds; the list.
-- Reply: the secret that all replicas use.
-- ARGV to read: 'read'; the id of the replica; how long a list counts; the most bytes to give.
-- Reply: the number of other replicas, and the lists of as many of them as the bytes allow.
--
-- Invariants: every name has an expiry. The directory has no replica whose list no longer counts. A list with a time in the
-- future was published before the clock stepped back; it does not count.
local directory, own, lifetime, most = KEYS[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local entries = redis.call('GET', directory) or ''
local live = {}
for start = 1, #entries - 47, 48 do
  local id, at = string.sub(entries, start, start + 31), tonumber(string.sub(entries, start + 32, start + 47))
  if id ~= own and at and at > now - lifetime and at <= now then
    live[#live + 1] = id .. string.format('%016.0f', at)
  end
end
if ARGV[1] == 'read' then
  local reply, bytes = {#live}, 0
  for _, entry in ipairs(live) do
    local list = redis.call('GET', directory .. ':' .. string.sub(entry, 1, 32))
    if list and bytes + #list <= most then
      bytes = bytes + #list
      reply[#reply + 1] = list
    end
  end
  return reply
end
local secret = redis.call('GET', directory .. ':secret')
if not secret then
  secret = ARGV[5]
  redis.call('SET', directory .. ':secret', secret)
end
redis.call('PEXPIREAT', directory .. ':secret', string.format('%.0f', now + tonumber(ARGV[6])))
while #live >= most do
  table.remove(live, 1)
end
live[#live + 1] = own .. string.format('%016.0f', now)
redis.call('SET', directory, table.concat(live), 'PX', lifetime)
redis.call('SET', directory .. ':' .. own, ARGV[7], 'PX', lifetime)
return secret
