-- The end of holds whose leases have. Twin of a part of src/core/algorithm/holds.rs and holds/notes.rs.

--{ hold_due
local PARTS = { 'B', [6] = '>I6' }
local function ends_before(a, b)
  if a.expires ~= b.expires then
    return a.expires < b.expires
  end
  -- As bytes, whatever the locale of Redis is; six at once.
  local place, size = 1, math.min(#a.id, #b.id)
  while place <= size do
    local count = size - place < 5 and 1 or 6
    local left, right = unpack(PARTS[count], a.id, place), unpack(PARTS[count], b.id, place)
    if left ~= right then
      return left < right
    end
    place = place + count
  end
  return #a.id < #b.id
end

-- Maximum work of ending holds in one call, in microseconds. An end remembers an id, and may give units back.
local ENDS_WORK_MAX, END_WORK = 700, 8
-- How many holds may end now: one at least, unless the script call has done too much already.
local function ends_at_most(group, ask)
  local work = END_WORK + (ask.terms.releases and give_back_work(group, ask) or 0)
  local left = ask.left and ask.left - (group.notes.parse_work or 0) or math.huge
  return work <= left and max(floor(math.min(ENDS_WORK_MAX, left) / work), 1) or 0
end

-- Of the holds that this plan may end, those that end first, in their order, as many as may end in one call; and whether there are more.
local function first_due(group, ask)
  local found, ends, due = {}, {}, {}
  for _, hold in ipairs(holds_of(group.notes)) do
    local plan = hold.plan
    if hold.expires <= now and (not plan.releases or gives_back_to(plan, ask) or known_until(hold) <= now) then
      found[#found + 1], ends[#ends + 1] = hold, hold.expires
    end
  end
  local most = found[1] and ends_at_most(group, ask) or 0
  local has_more = #found > most
  if has_more then
    -- Only what may be among the first is put in order, since that costs more than all else.
    table.sort(ends)
  end
  for _, hold in ipairs(found) do
    due[#due + 1] = (not has_more or hold.expires <= ends[most]) and hold or nil
  end
  table.sort(due, ends_before)
  for index = #due, most + 1, -1 do
    due[index] = nil
  end
  return due, has_more
end
--}

--{ hold_ends
-- A lease that ends later than the longest from now was given by a clock that stepped back since. It ends so long from now.
local function clamp_holds(notes)
  local is_ahead = false
  for _, plan in ipairs(notes.plans) do
    is_ahead = is_ahead or plan.count > 0 and plan.last > now + plan.max_ttl
  end
  if not is_ahead then
    return
  end
  for _, hold in ipairs(holds_of(notes)) do
    hold.expires = math.min(hold.expires, now + hold.plan.max_ttl)
  end
  count_holds(notes)
end

-- Ends what has expired of the holds, as far as this plan may. Returns how many ended, how many gave units back, and the units; and
-- whether more are to end, so that the call is left to the next one. Then this one writes what has ended, even for a peek.
local function end_due(group, ask)
  local notes, kept, ended, released, units, has_ended = group.notes, {}, {}, 0, 0, false
  for _, plan in ipairs(notes.plans) do
    has_ended = has_ended or plan.count > 0 and plan.first <= now
  end
  if not has_ended then
    return 0, 0, 0, false
  end
  local due, has_more = first_due(group, ask)
  if not due[1] then
    return 0, 0, 0, has_more
  end
  group.is_peek = group.is_peek and not has_more
  for _, hold in ipairs(due) do
    ended[hold] = true
  end
  for _, hold in ipairs(notes.holds) do
    kept[#kept + 1] = not ended[hold] and hold or nil
  end
  notes.holds, group.more_work = kept, group.more_work + #due * END_WORK
  count_holds(notes)
  for _, hold in ipairs(due) do
    remember(group, hold.id, hold.plan, EXPIRED, hold.cost, 0, hold.expires + hold.plan.remember)
  end
  if group.has_logs and not group.is_peek then
    write_notes(group)
  end
  for _, hold in ipairs(due) do
    if gives_back_to(hold.plan, ask) then
      local _, most = give_back(group, ask, hold, hold.cost)
      released, units = released + (most > 0 and 1 or 0), units + most
    end
  end
  return #due, released, units, has_more
end
--}
