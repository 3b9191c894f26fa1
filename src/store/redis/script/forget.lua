-- Deletes what is kept of a subject, for a Reset; a script of its own. A hash of 100,000 ids is freed in 30 ms, so another thread of Redis
-- frees what is large.
--
-- KEYS     the index of the subject's logs, see log_index.lua; then every other key that it may have, if any is named.
-- ARGV[1]  the index as the caller read it, empty if there was none or no string: the logs that it lists are among the keys.
-- Reply    how many of the other keys there were; -1, and nothing is done, when the index is another one by now.
local index = redis.pcall('GET', KEYS[1])
if (type(index) == 'string' and index or '') ~= ARGV[1] then
  return -1
end
redis.call('UNLINK', KEYS[1])
-- unpack takes a little under 8,000.
local deleted, step = 0, 1000
for first = 2, #KEYS, step do
  deleted = deleted + redis.call('UNLINK', unpack(KEYS, first, math.min(first + step - 1, #KEYS)))
end
return deleted
