-- What a key has of holds and of ids: a STRING. Twin of a part of src/core/algorithm/holds/notes.rs.
-- Layout: VERSION B, plans B, and what tells of each plan: length of the name B, name, hash of its limits c8, flags B (the sum
-- of RELEASES and SLOTTED), buckets B, how long ids are remembered I5, the longest lease I5, for how long its units may count I6, max_ids I3.
-- Buckets that units were given back to B, and for each: length of the fingerprint B, fingerprint, what was ever given back I7. The head:
-- how many bytes each hold's id has B (0 where they have not the same), and NO_IDS more if there are none that are not open, the second in
-- which the key goes I5; of ids that are not open, if there are any: recent ones I2, all I3, the number of the first one I5, gaps between
-- those in the HASH I3, how many before the first one are in the HASH yet I2, the greatest max_ids of their plans I3. Per plan: open holds
-- I2, and between which times their leases end I7 I7: those of the first and the last one, or of such as have been settled since.
-- Then the holds: length of the id B, id, plan B, and OLDER more where the id was known before, cost I5, when it was reserved I7, the end
-- of its lease I7, and for each bucket of the plan when it would have been full just after the charge, and later by what had been given
-- back to it until then I7; of plans that release, for each bucket what had been given back by then I7. At last the recent ids, see
-- ids.lua. Times are in microseconds.
-- Most calls need no more than what is told of the plans, so the holds are parsed only where a call changes or ends some; short.lua
-- does not even then.

--{ hold_words
local VERSION, RELEASES, SLOTTED, OLDER = 1, 1, 2, 128
local HEAD, IDS, NO_IDS = '<BI5', '<I2I3I5I3I2I3', 128
-- Maximum that was given back to a bucket: a hold that is open for longer gives nothing back. Sums stay exact below 2^53.
local GIVEN_MAX = 2251799813685248 -- 2^51
-- Ids that are recent at most when a call begins. More go to the HASH first.
local RECENT_MAX = 16
--}

--{ hold_notes
-- All fields at once: a table that grows costs as much as a command.
local function read_plan(value, start)
  local name, limits_hash, flags, buckets, remember, max_ttl, counts, max_ids, at = unpack('<Bc0c8BBI5I5I6I3', value, start)
  return {
    name = name, limits_hash = limits_hash, buckets = buckets, remember = remember, max_ttl = max_ttl, counts = counts, max_ids = max_ids,
    releases = flags % 2 == RELEASES, has_slots = flags >= SLOTTED, text = sub(value, start, at - 1), count = 0, first = 0, last = 0,
    max_open = 0, slots = 0, is_shadow = false, limits = false, times_as = '<' .. rep('I7', buckets),
  }, at
end

local function parse_notes(value)
  local notes = {
    value = value, plans = {}, given = {}, holds = false, recent = false, recent_by_id = {}, recent_from = 1, recent_count = 0, body = '', parsed = '',
    id_bytes = 0, first = 0, ids = 0, gaps = 0, stale = 0, max_ids = 0, expires = 0, expired = 0, is_changed = false,
  }
  if not value then
    return notes
  end
  local version, plans, given, at
  -- What holds and ids of so many take at least and at most.
  local least, most = 0, 0
  version, plans, at = unpack('<BB', value)
  if version ~= VERSION then
    error('tollgate: holds that cannot be read', 0)
  end
  for index = 1, plans do
    notes.plans[index], at = read_plan(value, at)
  end
  given, at = unpack('<B', value, at)
  for _ = 1, given do
    local fingerprint, us
    fingerprint, us, at = unpack('<Bc0I7', value, at)
    notes.given[fingerprint] = us
  end
  notes.id_bytes, notes.expires, at = unpack(HEAD, value, at)
  if notes.id_bytes < NO_IDS then
    notes.recent_count, notes.ids, notes.first, notes.gaps, notes.stale, notes.max_ids, at = unpack(IDS, value, at)
  end
  notes.id_bytes = notes.id_bytes % NO_IDS
  notes.expired = notes.expires
  for _, plan in ipairs(notes.plans) do
    plan.count, plan.first, plan.last, at = unpack('<I2I7I7', value, at)
    least, most = least + plan.count * (22 + 7 * plan.buckets), most + plan.count * (85 + 14 * plan.buckets)
  end
  notes.body = sub(value, at)
  least, most = least + notes.recent_count * 21, most + notes.recent_count * 84
  if #notes.body < least or #notes.body > most then
    error('tollgate: holds that cannot be read', 0)
  end
  return notes
end

-- The notes of a key without holds.
local NO_HOLDS = pack('<BBB', VERSION, 0, 0) .. pack(HEAD, NO_IDS, 0)

-- Until when the id of a hold is known if nobody settles it. One whose end gives units back stays as long as they may count.
local function known_until(hold)
  local known = hold.expires + hold.plan.remember
  if hold.plan.releases then
    known = max(known, hold.at + hold.plan.counts)
    for index, full in ipairs(hold.full) do
      known = max(known, full - hold.given[index])
    end
  end
  return known
end

-- A time of each bucket.
local function read_times(plan, value, at)
  local times = { unpack(plan.times_as, value, at) }
  at, times[#times] = times[#times], nil
  return times, at
end

local NONE = {}
-- Bytes of holds that are parsed in a microsecond. It makes tables, whose memory is collected meanwhile.
local BYTES_PARSED_PER_US = 16

-- The holds, one by one, and the recent ids, of which some may be false. Errors: `is_later`, where `left` is set and less than that takes.
local function holds_of(notes)
  if notes.holds then
    return notes.holds, notes.recent
  end
  notes.parse_work = #notes.body / BYTES_PARSED_PER_US
  if notes.left and notes.parse_work > notes.left then
    error({ is_later = true })
  end
  local holds, recent, body, at, count = {}, {}, notes.body, 1, 0
  for _, plan in ipairs(notes.plans) do
    count = count + plan.count
  end
  for index = 1, count do
    local from, full, given, id, place, cost, reserved, expires = at, NONE, NONE, nil, nil, nil, nil, nil
    id, place, cost, reserved, expires, at = unpack('<Bc0BI5I7I7', body, at)
    local plan = notes.plans[place % OLDER + 1]
    if plan.buckets > 0 then
      full, at = read_times(plan, body, at)
      if plan.releases then
        given, at = read_times(plan, body, at)
      end
    end
    holds[index] = {
      id = id, plan = plan, cost = cost, at = reserved, expires = expires, full = full, given = given, has_older = place >= OLDER,
      from = from, to = at - 1, place = place, noted_expires = expires,
    }
  end
  for index = 1, notes.recent_count do
    local id
    id, at = read_id(notes.plans, body, at)
    recent[index], notes.recent_by_id[id.id], id.place = id, id, index
  end
  if at ~= #body + 1 then
    error('tollgate: holds that cannot be read', 0)
  end
  notes.holds, notes.recent, notes.parsed = holds, recent, body
  return holds, recent
end

-- Has the key stay until then, and a part of the time for which its plan remembers ids more, so that it seldom has to be told.
local function keep_until(notes, plan, until_us)
  local unit = unit_of(plan.remember)
  notes.expires = max(notes.expires, ceil((until_us - until_us % unit + unit) / 1000000))
end

-- Counts a hold in what is told of its plan.
local function count_hold(notes, hold)
  local plan, ends = hold.plan, hold.expires
  plan.first = plan.count > 0 and math.min(plan.first, ends) or ends
  plan.last = plan.count > 0 and max(plan.last, ends) or ends
  plan.count = plan.count + 1
  keep_until(notes, plan, known_until(hold))
end

-- Tells anew of the holds, which have changed.
local function count_holds(notes)
  for _, plan in ipairs(notes.plans) do
    plan.count, plan.first, plan.last = 0, 0, 0
  end
  notes.is_changed = true
  for _, hold in ipairs(notes.holds) do
    count_hold(notes, hold)
  end
end

local function pack_hold(hold, place)
  local full, given = '', ''
  for index, full_at in ipairs(hold.full) do
    full, given = full .. pack('<I7', full_at), hold.plan.releases and given .. pack('<I7', hold.given[index]) or ''
  end
  return pack('<Bc0BI5I7I7', #hold.id, hold.id, place, hold.cost, hold.at, hold.expires) .. full .. given
end

-- A plan as the notes have it, to which it is added if need be; and its place among them, from 0.
local function noted_plan(notes, plan)
  for index, other in ipairs(notes.plans) do
    if other.text == plan.text then
      return other, index - 1
    end
  end
  local place = #notes.plans
  if place >= OLDER then
    error('tollgate: the key has holds of 128 plans already', 0)
  end
  notes.plans[place + 1] = setmetatable({ count = 0, first = 0, last = 0 }, { __index = plan })
  return notes.plans[place + 1], place
end

local function add_hold(notes, hold)
  local place, open = nil, 0
  for _, plan in ipairs(notes.plans) do
    open = open + plan.count
  end
  notes.id_bytes = (open == 0 or notes.id_bytes == #hold.id) and #hold.id or 0
  hold.plan, place = noted_plan(notes, hold.plan)
  count_hold(notes, hold)
  if notes.holds then
    notes.holds[#notes.holds + 1] = hold
  else
    notes.body = pack_hold(hold, place + (hold.has_older and OLDER or 0)) .. notes.body
  end
  notes.is_changed = true
end

-- The holds and recent ids anew, of only the plans that have some. Holds that stand side by side as they were noted are copied at once.
local function pack_body(notes)
  local plans, places, body, from, to = {}, {}, {}, 1, 0
  local function place_of(plan)
    if not places[plan] then
      plans[#plans + 1], places[plan] = plan, #plans
    end
    return places[plan]
  end
  for _, hold in ipairs(notes.holds) do
    local place = place_of(hold.plan) + (hold.has_older and OLDER or 0)
    local is_as_noted = hold.place == place and hold.noted_expires == hold.expires
    if is_as_noted and hold.from == to + 1 then
      to = hold.to
    else
      body[#body + 1] = sub(notes.parsed, from, to)
      from, to = is_as_noted and hold.from or 1, is_as_noted and hold.to or 0
      body[#body + 1] = not is_as_noted and pack_hold(hold, place) or nil
    end
  end
  body[#body + 1] = sub(notes.parsed, from, to)
  for _, id in ipairs(notes.recent) do
    body[#body + 1] = id and pack_recent(id, place_of(id.plan)) or nil
  end
  notes.plans, notes.body = plans, table.concat(body)
end

-- The notes as a string; false without any.
local function pack_notes(notes)
  if notes.holds then
    pack_body(notes)
  end
  local has_ids = notes.ids + notes.gaps + notes.stale > 0
  if notes.body == '' and not has_ids then
    return false
  end
  local told, counts, given, buckets = {}, {}, {}, 0
  for index, plan in ipairs(notes.plans) do
    told[index], counts[index] = plan.text, pack('<I2I7I7', plan.count, plan.first, plan.last)
  end
  for fingerprint, us in pairs(notes.given) do
    buckets = buckets + 1
    given[buckets] = pack('<Bc0I7', #fingerprint, fingerprint, us)
  end
  return pack('<BB', VERSION, #told) .. table.concat(told) .. pack('<B', buckets) .. table.concat(given)
    .. pack(HEAD, notes.id_bytes + (has_ids and 0 or NO_IDS), notes.expires)
    .. (has_ids and pack(IDS, notes.recent_count, notes.ids, notes.first, notes.gaps, notes.stale, notes.max_ids) or '')
    .. table.concat(counts) .. notes.body
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
      hold.place = false
    end
  end
  notes.given[fingerprint], notes.is_changed = given, true
end
--}
