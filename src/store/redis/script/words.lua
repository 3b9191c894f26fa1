-- Short names of what every chunk uses. `unpack` is struct's; Lua's own is `table_unpack`.
local table_unpack = unpack
local pack, unpack = struct.pack, struct.unpack
local byte, sub, floor, type = string.byte, string.sub, math.floor, type
local call, try = redis.call, redis.pcall
