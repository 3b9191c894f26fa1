-- Local names for functions that every part of the script uses. `unpack` is that of Redis's struct library; Lua's own `unpack`
-- is called `table_unpack`.
local table_unpack = unpack
local pack, unpack = struct.pack, struct.unpack
local byte, sub, rep, floor, ceil, max, type = string.byte, string.sub, string.rep, math.floor, math.ceil, math.max, type
local call, try = redis.call, redis.pcall
