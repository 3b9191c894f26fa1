-- The expiry of a key whose last state is fresh at the given microsecond: whole milliseconds since 1970, rounded up, and
-- one more so that Redis never drops a key before its state says so. Lua writes numbers of up to 14 digits in full, which
-- milliseconds are until the year 5138.
local function expiry(fresh_at)
  return math.ceil(fresh_at / 1000) + 1 .. ''
end
