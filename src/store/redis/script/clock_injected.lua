-- For the parity tests only: the clock is the last argument instead of Redis's own. Sets the same as clock.lua.
local now = tonumber(table.remove(ARGV))
