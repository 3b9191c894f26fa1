-- Records that a replica is alive, or that it stops, and counts the replicas that are alive.
--
-- KEYS[1]: a sorted set of replicas by the time of their last announcement, in milliseconds.
-- ARGV: the id of the replica; how long it counts from now, in milliseconds, or 0 when it stops; the most replicas to keep.
-- Reply: the number of replicas that are alive.
--
-- Invariants: the set has an expiry, and holds no replica whose lifetime is over. A replica with a time in the future was
-- recorded before the clock stepped back. It is removed, and comes back with its next announcement.
local lifetime, most = tonumber(ARGV[2]), tonumber(ARGV[3])
if lifetime == 0 then
  redis.call('ZREM', KEYS[1], ARGV[1])
  return redis.call('ZCARD', KEYS[1])
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - lifetime))
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now), '+inf')
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - most)
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', now + lifetime))
return redis.call('ZCARD', KEYS[1])
