-- The store's clock: Redis's own, in microseconds since 1970, read once per call. Sets
--   now    the present, a whole number below 2^53
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
