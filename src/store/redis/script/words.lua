-- Local names for functions that every part of the script uses. `unpack` is that of Redis's struct library; Lua's own `unpack`
-- is called `table_unpack`.
local table_unpack = unpack
local pack, unpack = struct.pack, struct.unpack
local byte, sub, rep, floor, ceil, max, type = string.byte, string.sub, string.rep, math.floor, math.ceil, math.max, type
local call, try, format = redis.call, redis.pcall, string.format
-- After the records of a packed state, before its rings. No record begins with it: it is the head of a sliding_log.
local RINGS = SLIDING_LOG
-- Begins the record of a block, see block.lua. It is a head of a sliding_log, too.
local BLOCK = SLIDING_LOG + 8
-- The value of `form` for the group that stands for all joint decisions of a call.
local JOINT = 2
