-- Short names of what every part uses. `unpack` is struct's; Lua's own is `table_unpack`.
local table_unpack = unpack
local pack, unpack = struct.pack, struct.unpack
local byte, sub, rep, floor, ceil, max, type = string.byte, string.sub, string.rep, math.floor, math.ceil, math.max, type
local call, try = redis.call, redis.pcall
