-- Stamps and the times in them; see stamp.lua.

local function stamp(time, tag)
  local top = floor(time / STAMP_TOP)
  return time - top * STAMP_TOP, top + tag * 32
end

-- The time of a stamp, and its tag.
local function read_stamp(low, top)
  local tag = floor(top / 32)
  return low + (top - tag * 32) * STAMP_TOP, tag
end
