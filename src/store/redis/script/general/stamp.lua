-- A stamp: a time I7 of which the upper three bits are free, because microseconds since 1970 stay below 2^53 until the
-- year 2255. They hold a tag, 0 to 7. In Lua a stamp goes as two numbers: its lower six bytes, and its last.
local STAMP_TOP = 281474976710656 -- 2^48

local function stamp(time, tag)
  local top = floor(time / STAMP_TOP)
  return time - top * STAMP_TOP, top + tag * 32
end

-- The smallest stamp that has a tag; numbers below it are exact, and times.
local TAGGED = 9007199254740992 -- 2^53

-- The time of a stamp, and its tag.
local function read_stamp(low, top)
  local tag = floor(top / 32)
  return low + (top - tag * 32) * STAMP_TOP, tag
end

-- In how many bytes a count fits, 1 to 5: what the stamp before it is tagged with.
local function bytes_of(count)
  if count < 256 then
    return 1
  elseif count < 65536 then
    return 2
  elseif count < 16777216 then
    return 3
  end
  return count < 4294967296 and 4 or 5
end
