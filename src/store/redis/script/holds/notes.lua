-- The holds of a key that were not ended: a STRING. Twin of a part of src/core/algorithm/holds/notes.rs.
-- Layout: VERSION B, plans B, buckets B, until when the key is of use I7; per plan, what tells of it (length of the name B, name, c8 that
-- tells its limits from others, flags B (the sum of RELEASES and SLOTTED), buckets B, how long ids are remembered I5, the longest lease I5,
-- for how long its units may count I6, max_ids I3), and of its holds: how many I2, and when the first and the last of their leases end
-- I7 I7; per bucket that units were given back to: length of the fingerprint B, fingerprint, what was ever given back I7; then the holds:
-- length of the id B, id, plan B, cost I5, when it was reserved I7, the end of its lease I7, and for each bucket of the plan when it would
-- have been full just after the charge I7; for each bucket what had been given back to it by then I7, if anything had, which adds
-- WITH_GIVEN to the plan. Times are in microseconds.
-- Most calls need no more than what is told of the plans, so the holds are parsed only where a call changes or ends some.

--{ hold_notes
local VERSION, RELEASES, SLOTTED, WITH_GIVEN = 1, 1, 2, 128
-- Most that was given back to a bucket: a hold that is open for longer gives nothing back. Sums stay exact below 2^53.
local GIVEN_MAX = 4503599627370496 -- 2^52

-- All fields at once: a table that grows costs as much as a command.
local function read_plan(value, start)
  local name, alike, flags, buckets, remember, max_ttl, counts, max_ids, at = unpack('<Bc0c8BBI5I5I6I3', value, start)
  return {
    name = name, alike = alike, buckets = buckets, remember = remember, max_ttl = max_ttl, counts = counts, max_ids = max_ids,
    releases = flags % 2 == RELEASES, has_slots = flags >= SLOTTED, text = sub(value, start, at - 1), count = 0, first = 0, last = 0,
    max_open = 0, slots = 0, is_shadow = false, limits = false,
  }, at
end

local function parse_notes(value)
  local notes = { value = value, plans = {}, given = {}, holds = false, body = '', until_us = 0, is_changed = false }
  if not value then
    return notes
  end
  local version, plans, given, at
  -- What holds of so many take at least and at most.
  local least, most = 0, 0
  version, plans, given, notes.until_us, at = unpack('<BBBI7', value)
  if version ~= VERSION then
    error('tollgate: holds that cannot be read', 0)
  end
  for index = 1, plans do
    local plan
    plan, at = read_plan(value, at)
    plan.count, plan.first, plan.last, at = unpack('<I2I7I7', value, at)
    notes.plans[index] = plan
    least, most = least + plan.count * (22 + 7 * plan.buckets), most + plan.count * (85 + 14 * plan.buckets)
  end
  for _ = 1, given do
    local fingerprint, us
    fingerprint, us, at = unpack('<Bc0I7', value, at)
    notes.given[fingerprint] = us
  end
  notes.body = sub(value, at)
  if #notes.body < least or #notes.body > most then
    error('tollgate: holds that cannot be read', 0)
  end
  return notes
end

-- The notes of a key without holds.
local NO_HOLDS = pack('<BBBI7', VERSION, 0, 0, 0)

local function read_notes(key)
  return parse_notes(call('GET', key))
end

-- Until when the id of a hold is known if nobody settles it. One whose end gives units back stays as long as they may count.
local function known_until(hold)
  local remembered = hold.expires + hold.plan.remember
  if not hold.plan.releases then
    return remembered
  end
  return max(remembered, hold.at + hold.plan.counts, 0, table_unpack(hold.full))
end

-- The holds, one by one.
local function holds_of(notes)
  if notes.holds then
    return notes.holds
  end
  local holds, body, at = {}, notes.body, 1
  while at <= #body do
    local hold, plan = { full = {}, given = {} }, nil
    hold.id, plan, hold.cost, hold.at, hold.expires, at = unpack('<Bc0BI5I7I7', body, at)
    hold.plan = notes.plans[plan % WITH_GIVEN + 1]
    for index = 1, hold.plan.buckets do
      hold.full[index], at = unpack('<I7', body, at)
      hold.given[index] = 0
    end
    for index = 1, plan >= WITH_GIVEN and hold.plan.buckets or 0 do
      hold.given[index], at = unpack('<I7', body, at)
    end
    holds[#holds + 1] = hold
  end
  notes.holds = holds
  return holds
end

-- Counts a hold in what is told of its plan.
local function count_hold(notes, hold)
  local plan, ends = hold.plan, hold.expires
  plan.first = plan.count > 0 and math.min(plan.first, ends) or ends
  plan.last = plan.count > 0 and max(plan.last, ends) or ends
  plan.count, notes.until_us = plan.count + 1, max(notes.until_us, known_until(hold))
end

-- Tells anew of the holds, which have changed.
local function count_holds(notes)
  for _, plan in ipairs(notes.plans) do
    plan.count = 0
  end
  notes.until_us, notes.is_changed = 0, true
  for _, hold in ipairs(notes.holds) do
    count_hold(notes, hold)
  end
end

local function pack_hold(hold, place)
  local full, given, has_given = '', '', false
  for index, full_at in ipairs(hold.full) do
    full, given = full .. pack('<I7', full_at), given .. pack('<I7', hold.given[index])
    has_given = has_given or hold.given[index] > 0
  end
  place = place + (has_given and WITH_GIVEN or 0)
  return pack('<Bc0BI5I7I7', #hold.id, hold.id, place, hold.cost, hold.at, hold.expires) .. full .. (has_given and given or '')
end

-- Adds a hold of a plan, of which there may be none yet.
local function add_hold(notes, hold)
  local place
  for index, plan in ipairs(notes.plans) do
    place = plan.text == hold.plan.text and index or place
  end
  if not place then
    place = #notes.plans + 1
    if place > WITH_GIVEN then
      error('tollgate: the key has holds of 128 plans already', 0)
    end
    notes.plans[place] = setmetatable({ count = 0 }, { __index = hold.plan })
  end
  hold.plan = notes.plans[place]
  count_hold(notes, hold)
  if notes.holds then
    notes.holds[#notes.holds + 1] = hold
  else
    notes.body = notes.body .. pack_hold(hold, place - 1)
  end
  notes.is_changed = true
end

-- The notes as a string; false without a hold.
local function pack_notes(notes)
  local places, body, told = {}, {}, {}
  if notes.holds then
    local plans = {}
    for _, plan in ipairs(notes.plans) do
      if plan.count > 0 then
        plans[#plans + 1], places[plan] = plan, #plans
      end
    end
    for index, hold in ipairs(notes.holds) do
      body[index] = pack_hold(hold, places[hold.plan])
    end
    notes.plans, notes.body = plans, table.concat(body)
  end
  if notes.body == '' then
    return false
  end
  for index, plan in ipairs(notes.plans) do
    told[index] = plan.text .. pack('<I2I7I7', plan.count, plan.first, plan.last)
  end
  local buckets = 0
  for fingerprint, us in pairs(notes.given) do
    told[#told + 1], buckets = pack('<Bc0I7', #fingerprint, fingerprint, us), buckets + 1
  end
  return pack('<BBBI7', VERSION, #notes.plans, buckets, notes.until_us) .. table.concat(told) .. notes.body
end

-- Notes that so much was given back to a bucket.
local function note_given(notes, fingerprint, us)
  local given = (notes.given[fingerprint] or 0) + us
  if given > GIVEN_MAX then
    given = 0
    for _, hold in ipairs(holds_of(notes)) do
      for index = 1, #hold.full do
        hold.full[index], hold.given[index] = 0, 0
      end
    end
  end
  notes.given[fingerprint], notes.is_changed = given, true
end
--}
