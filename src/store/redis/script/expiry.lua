-- Expiries collect garbage and nothing else, so they are coarse: a state that is fresh at fresh_at goes at the next multiple
-- of an eighth of its window, of a second at least. Most charges then leave the expiry as it was, and a SET that keeps it
-- costs Redis half of one that sets it.
local function expiry_unit(window)
  return math.max(floor(window / 8), 1000000)
end

-- When a state of this unit goes, in microseconds since 1970; always after it is fresh.
local function expiry(fresh_at, unit)
  return fresh_at - fresh_at % unit + unit
end

-- An expiry as Redis takes it: whole milliseconds, and one more so that it never drops a key before its state says so.
local function text_of(expires)
  return string.format('%d', floor(expires / 1000) + 1)
end
