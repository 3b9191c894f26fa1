-- A stamp: a time I7 of which the upper three bits are free, because microseconds since 1970 stay below 2^53 until the
-- year 2255. They hold a tag, 0 to 7. In Lua a stamp goes as two numbers: its lower six bytes, and its last.
local STAMP_TOP = 281474976710656 -- 2^48

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
