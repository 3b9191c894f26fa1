-- The store's clock: Redis's own, in microseconds since 1970, read once per call. Sets
--   now    the present, a whole number below 2^53
--   items  how many of ARGV are requests
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local items = #ARGV
