-- Requests without an id, as far as they meet holds, and the calls by their numbers.

do
--{ hold_long
-- Carries a request out by functions, which are made where a call first needs them.
if not call_of then
  if #keys > packed + groups then
--> log
  end
  read_terms, group_of, call_of = (function()
--> general_parts
--> hold_functions
return read_terms, group_of, call_of
  end)()
end
if not terms[index] then
  terms[index] = read_terms(terms_at[index])
end
decided, result = true, group
if not group then
  local key, names = has_packed == 1 and keys[next_packed], { keys[next_notes], keys[next_log] }
  decided, result = pcall(group_of, key, names, next_log + 1, next_log + logs)
  group = decided and result or nil
end
if decided then
  local ask = {
    call = asked, number = number, lease = lease, id = sub(entry, 2), terms = terms[index], limits = false, begun = false,
    -- Behind a few light requests, as the first one, it takes what it takes: so none is left to the next call for ever.
    left = work > 100 and WORK_MAX - work or nil,
  }
  decided, result = pcall(call_of, group, ask)
end
if not decided and type(result) == 'table' and result.is_later then
  decided, result = true, pack('<BI4I4I7', 66, 0, 0, 0)
end
reply = decided and result
work = work + expected + (group and group.more_work or 0)
work = reply and byte(reply) == 66 and WORK_MAX + 1 or work
problem = not decided and (type(result) == 'table' and result.err or tostring(result))
--}
end

--{ hold_requests
-- A ShouldAllow or its peek: it ends what is due of its plan where it would be denied else.
local function decide_after_ends(group, ask, mode)
  local charges, fits = mode == 1 or nil, true
  for _, limit in ipairs(ask.limits) do
    local _, fits_limit = evaluate(limit, group.records, group.logs, charges and false, ask.number)
    fits = fits and fits_limit
  end
  local is_due = false
  for _, plan in ipairs(group.notes.plans) do
    is_due = is_due or plan.count > 0 and plan.first <= now and gives_back_to(plan, ask)
  end
  if is_due and not fits then
    clamp_holds(group.notes)
    local expired, released, units, has_more = end_due(group, ask)
    if has_more then
      return pack('<BI4I4I7', 66, expired, released, units)
    elseif group.has_logs and charges then
      write_notes(group)
    end
  end
  local states
  states, fits = evaluate_all(ask.limits, group.records, group.logs, charges, ask.number)
  if charges then
    if not fits then
      states = evaluate_all(ask.limits, group.records, group.logs, false, ask.number)
    end
    group.notes.left = nil
    charge(group, ask.limits, states, fits, ask.number)
  end
  local told = reply_of(fits, states, readings_of(states, ask.number, fits and charges))
  return 'L' .. told .. pack('<I7', fits and 0 or first_release(group, ask))
end

-- When each bucket will be full, 0 for one that is not kept.
local function full_at(group, ask)
  local full = {}
  for index, limit in ipairs(ask.limits) do
    local found = limit.kind == TOKEN_BUCKET and group.records[limit.fingerprint]
    full[index] = 0
    if found and found.text then
      local _
      _, full[index] = unpack('<I' .. byte(found.text, #limit.fingerprint + 1) % 8 .. 'I7', found.text, #limit.fingerprint + 2)
    end
  end
  return full
end

-- A refund. What it gives back to buckets is noted where holds are open.
local function refund_noted(group, ask)
  group.notes.left = nil
  local before = full_at(group, ask)
  local states = evaluate_all(ask.limits, group.records, group.logs, false, 0)
  local read = readings_of(states, 0, false)
  refund(group, states, ask.number)
  local after = full_at(group, ask)
  for index, limit in ipairs(ask.limits) do
    local given = before[index] - max(after[index], now)
    if given > 0 and group.notes.value then
      note_given(group.notes, limit.fingerprint, given)
    end
  end
  states = evaluate_all(ask.limits, group.records, group.logs, nil, 0)
  return 'G' .. reply_of(true, states, readings_of(states, 0, false)) .. read
end

-- Maximum number of ids that are counted one by one, and of leases that are told.
local COUNTED_MAX, TOLD_MAX = 1000, 5

-- How many ids of a part are known yet. `parts_of` has all fields of the HASH.
local function known_in(notes, parts_of, field)
  local part, number, known = parts_of[field], tonumber(field), 0
  local plans, at = read_part(part)
  while at <= #part do
    local id, is_counted
    id, at = read_id(plans, part, at)
    is_counted = number >= notes.first and number < notes.first + hashed(notes) and id.until_us > now
    known = known + (is_counted and parts_of[pack('<Bc0', #id.id, id.id)] == field and 1 or 0)
    number = number + 1
  end
  return known
end

local function figures(group)
  local notes = group.notes
  local open, units, first, known = 0, 0, nil, 0
  local holds, recent = holds_of(notes)
  for _, hold in ipairs(holds) do
    if hold.expires > now then
      open, units, first = open + 1, units + hold.cost, math.min(first or hold.expires, hold.expires)
    elseif known_until(hold) > now then
      known = known + 1
    end
  end
  for _, id in ipairs(recent) do
    known = known + (id and id.until_us > now and 1 or 0)
  end
  if hashed(notes) > COUNTED_MAX then
    known = known + hashed(notes) - notes.gaps
  elseif hashed(notes) > 0 then
    local fields, parts_of = call('HGETALL', group.names[2]), {}
    for place = 1, #fields, 2 do
      parts_of[fields[place]] = fields[place + 1]
    end
    for field in pairs(parts_of) do
      -- Digits are greater than the length of an id that is as short.
      known = known + (byte(field) >= 48 and #field <= 16 and known_in(notes, parts_of, field) or 0)
    end
    group.more_work = #fields / 2
  end
  local told, ends = {}, slot_ends(group.notes)
  for index = 1, math.min(#ends, TOLD_MAX) do
    told[index] = pack('<I7', ends[index])
  end
  return pack('<BI4I7I7I4B', 70, open, units, first and first - now or 0, known, #told) .. table.concat(told)
end
--}

--{ hold_functions
--> text_of
--> hold_recent
--> hold_notes
--> hold_ids
--> hold_give_back
--> hold_charge_beyond
--> hold_view
--> hold_find
--> hold_writes
--> hold_due
--> hold_ends
--> hold_charges
--> hold_settles
--> hold_leases
--> hold_requests

local BY_ID = { [0] = reserve, charge_once, record, settle, settle, extend }
local SETTLE, PEEK, BESIDE, BESIDE_PEEK, REFUND, FIGURES = 3, 6, 7, 8, 9, 10

-- The terms of a plan from the request, and where the next ones begin.
local function read_terms(at)
  local terms, shadow, plan
  terms, at = read_plan(request, at)
  terms.max_open, terms.slots, shadow, plan, at = unpack('<I2I2BB', request, at)
  terms.is_shadow, terms.limits = shadow == 1, plan < 255 and limits_of(plan) or {}
  return terms, at
end

-- What is kept of a key.
local function group_of(key, names, first_log, last_log)
  -- The short way may have written them, and a key of another type was read as if it were not there.
  local value, notes = key and call('GET', key), call('GET', names[1])
  local group = group_with(key, value, first_log, last_log)
  return {
    key = key, value = value, records = group.records, logs = group.logs, has_logs = group.has_logs, names = names,
    notes = parse_notes(notes), ids = {}, undo = false, left_out = false, is_peek = false, gone = {},
    is_changed = false, is_charged = false, more_work = 0, front = false, parts_left = 0,
  }
end

-- Carries out one call with an id. Returns its reply.
local function by_id(group, ask)
  local known = find(group, ask)
  clamp_holds(group.notes)
  if known and ask.call ~= PEEK and not is_same(known, ask) then
    return 'K' .. pack('<I4I4I7', 0, 0, 0) .. refused(group, ask, known)
  end
  local expired, released, units, has_more = end_due(group, ask)
  local gives_back = ask.call == SETTLE and known and known.hold and ask.number < known.cost
  if has_more or gives_back and is_left_to_next(group, ask) then
    return pack('<BI4I4I7', 66, expired, released, units)
  end
  local letter, told, stands = 'P', '', nil
  if ask.call == PEEK then
    stands = peek(group, ask, ask.number)
  else
    letter, told, stands = BY_ID[ask.call](group, ask)
  end
  return letter .. pack('<I4I4I7', expired, released, units) .. told .. stands
end

local function carry_out(group, ask)
  if ask.call == FIGURES then
    return figures(group)
  elseif ask.call == REFUND then
    return refund_noted(group, ask)
  elseif ask.call == BESIDE or ask.call == BESIDE_PEEK then
    return decide_after_ends(group, ask, ask.call == BESIDE and 1 or 0)
  elseif ask.call >= TAKE and ask.call <= END then
    return lease(group, ask)
  elseif not BY_ID[ask.call] and ask.call ~= PEEK then
    error('tollgate: a request has an unknown call', 0)
  end
  return by_id(group, ask)
end

-- Carries out a call and writes what it changed; a peek writes nothing. Returns its reply.
local function call_of(group, ask)
  group.undo, group.left_out, group.is_peek = {}, {}, ask.call == PEEK or ask.call == BESIDE_PEEK
  group.gone, group.more_work, group.front, group.parts_left = {}, 0, false, PARTS_MAX
  ask.begun, ask.limits = {}, ask.terms.limits
  if group.notes.recent_count >= RECENT_MAX and not group.is_peek and ask.call ~= FIGURES then
--> hold_move
    group.notes, group.ids = parse_notes(move_recent(group.notes.value, group.names[1], group.names[2])), {}
  end
  local notes = group.notes
  notes.left = ask.left
  local decided, reply = pcall(carry_out, group, ask)
  group.more_work, notes.parse_work = group.more_work + (notes.parse_work or 0), nil
  put_back(group.left_out)
  if decided and group.is_peek then
    group.records, group.notes, group.is_changed = parse_records(group.value or ''), parse_notes(group.notes.value), false
    group.ids = {}
    return reply
  end
  local written, why = decided, reply
  if decided then
    written, why = pcall(write_group, group)
  end
  if not written then
    for index = #group.undo, 1, -1 do
      pcall(group.undo[index])
    end
    error(type(why) == 'table' and why.err or why, 0)
  end
  return reply
end
--}
