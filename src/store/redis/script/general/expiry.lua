-- Expiries and the writes that set them; see expiry.lua.

-- When a state of this unit goes.
local function expiry(fresh_at, unit)
  return fresh_at - fresh_at % unit + unit
end

-- As write(), whose problem ends the group.
local function put(key, before, value, expires, expired)
  local problem = write(key, before, value, expires, expired)
  if problem then
    error(problem, 0)
  end
end
