-- The calls. Twin of src/core/algorithm/holds.rs. Numbers of calls: 0 reserve, 1 a ShouldAllow with an id, 2 record, 3 settle with what was
-- used, 4 settle as held, 5 extend, 6 peek; without an id: 7 a ShouldAllow that may have to end holds, 8 its peek, 9 a refund, 10 figures.
-- Of streams: 11 take, whose number is 1 for a hold that the stream itself has just reserved, else 0; 12 renew and 13 end, whose number is
-- when the lease ends by what the stream was told last.
-- The lease is that of a reserve, extend or take; of a renew it is when the lease is to end, of an end when a renewal without an answer
-- would have it end, or 0; of a settle it is 1 where an unknown id changes nothing, else 0.
-- Letters of replies, and what they have; none is 'R' or 'T', which tell of a whole call. 'D' decided, and 'A' answered before, since the
-- id was known: time to the end of the lease I7, 0 without one; 'C' recorded; 'S' settled: outcome B (0 settled, 1 before, 2 expired, 3
-- unknown), units held, used, charged beyond I7 each, and of each limit those given back I7; 'X' extended: 0 open, 1 settled, 2 expired,
-- 3 unknown B, time to the end I7; 'P' peeked; 'K' the id is known for another call: 0 reserve, 1 ShouldAllow, 2 record B, the cost I7,
-- which is 2^53 - 1 without one, length of the plan's name B, name. 'L', without an id: the reply of request.lua and when units come back
-- I7, alone. 'G', a refund: such a reply of after it, and for each limit its reading from before it, alone. 'F', figures: open holds I4,
-- their units I7, when the first lease ends I7, ids that are known I4, slots B, and when the lease of each ends I7, the first ones. 'Y',
-- of streams: what ended, as above, what became of the lease B (see OPEN), and if it is open when it ends and the time until then I7 I7,
-- alone.

--{ hold_find
local NO_COST = 9007199254740991 -- 2^53 - 1
-- By the kind of an id, the call that it is known for.
local CALLS = { [SETTLED] = 0, [USED] = 0, [EXPIRED] = 0, [ALLOWED] = 1, [RECORDED] = 2 }

-- What is known of an id by a call under this plan, which ends the plan's holds that have expired. Nil where nothing is.
local function find(group, ask)
  if ask.id == '' then
    return nil
  end
  local is_noted = group.notes.holds or string.find(group.notes.body, pack('<Bc0', #ask.id, ask.id), 1, true)
  for _, hold in ipairs(is_noted and holds_of(group.notes) or {}) do
    if hold.id == ask.id then
      local known = { kind = EXPIRED, name = hold.plan.name, releases = hold.plan.releases, cost = hold.cost }
      known.hold = hold.expires > now and hold or nil
      local until_us = hold.plan.name == ask.terms.name and hold.expires + hold.plan.remember or known_until(hold)
      return (known.hold or until_us > now) and known or nil
    end
  end
  local id = id_of(group, ask.id)
  return id and id.until_us > now and id or nil
end

-- Whether an id is known for this very call, plan and cost.
local function is_same(known, ask)
  local asked, of = ask.call, CALLS[known.kind]
  if asked <= 2 then
    return of == asked and (known.kind == USED or known.cost == ask.number) and known.name == ask.terms.name
  end
  return of == 0 and known.name == ask.terms.name
end

local function refused(group, ask, known)
  local cost = known.kind == USED and NO_COST or known.cost
  return pack('<BI6BBc0', CALLS[known.kind], cost % STAMP_TOP, floor(cost / STAMP_TOP), #known.name, known.name) .. peek(group, ask, 1)
end
--}

--{ hold_writes
-- Writes the notes of a group, as far as they have changed, and how to undo it.
local function write_notes(group)
  local notes = group.notes
  if not notes.is_changed then
    return
  end
  local before, expired, expires, key = notes.value, notes.expired * 1000000, notes.expires * 1000000, group.names[1]
  -- It is deleted last: a write that is not refused can be undone by another one.
  local value = pack_notes(notes) or before and NO_HOLDS
  if value then
--> write
    local problem = write(key, before, value, expires, expired)
    if problem then
      error(problem, 0)
    end
  end
  notes.value, notes.expired, notes.is_changed = value, notes.expires, false
  group.undo[#group.undo + 1] = function()
    if before then
      -- By the command that was not refused.
      write(key, value, before, expired, expires)
    else
      call('DEL', key)
    end
  end
end

-- Writes what a call has changed: the notes, then the states. Where Redis refuses one, those before it are undone.
local function write_group(group)
  write_notes(group)
  write_records(group)
  if group.notes.value == NO_HOLDS then
    try('DEL', group.names[1])
    group.notes.value, group.notes.expired = false, 0
  end
  if next(group.gone) then
    pcall(sweep, group)
  end
end
--}

--{ hold_charges
-- Decides a cost where something beside the limits decides, too; notes it before it is charged.
local function decide_beside(group, ask, others_fit, note)
  local cost = ask.number
  local states, fits = evaluate_all(ask.limits, group.records, group.logs, true, cost)
  fits = fits and others_fit
  if not fits then
    states = evaluate_all(ask.limits, group.records, group.logs, false, cost)
  else
    note(states)
  end
  -- Once something is written, the request may not be left to the next call.
  group.notes.left = nil
  if fits and group.has_logs then
    write_notes(group)
  end
  charge(group, ask.limits, states, fits, cost)
  return states, fits
end

local function hold_of(group, ask, states)
  local hold = {
    id = ask.id, plan = ask.terms, cost = ask.number, at = now, expires = now + ask.lease, full = {}, given = {},
    has_older = id_of(group, ask.id) ~= false,
  }
  for _, state in ipairs(states) do
    if state.limit.kind == TOKEN_BUCKET then
      local given, debt = group.notes.given[state.limit.fingerprint] or 0, debt_of(state.limit, state)
      hold.full[#hold.full + 1], hold.given[#hold.given + 1] = now + debt + given, given
    end
  end
  return hold
end

local function reserve(group, ask)
  local known = find(group, ask)
  if known then
    return 'A', pack('<I7', known.hold and known.hold.expires - now or 0), present(group, ask)
  end
  local slots, room_wait = slots_of(group, ask), full_for(group, ask)
  local states, fits = decide_beside(group, ask, not room_wait and (not slots or slots.wait == 0), function(states)
    add_hold(group.notes, hold_of(group, ask, states))
  end)
  return 'D', pack('<I7', fits and ask.lease or 0), view(group, ask, fits, states, ask.number, fits, room_wait)
end

local function charge_once(group, ask)
  if find(group, ask) then
    return 'A', pack('<I7', 0), present(group, ask)
  end
  local states, fits = decide_beside(group, ask, true, function()
    remember(group, ask.id, ask.terms, ALLOWED, ask.number, 0, now + ask.terms.remember)
  end)
  return 'D', pack('<I7', 0), view(group, ask, fits, states, ask.number, fits)
end

local function record(group, ask)
  if find(group, ask) then
    return 'A', pack('<I7', 0), peek(group, ask, 1)
  end
  if ask.id ~= '' then
    remember(group, ask.id, ask.terms, RECORDED, ask.number, 0, now + ask.terms.remember)
    if group.has_logs then
      write_notes(group)
    end
  end
  charge_beyond(group, ask, ask.number)
  return 'C', '', peek(group, ask, 1)
end
--}

--{ hold_settles
local function settlement(group, ask, outcome, held, actual, excess, returned)
  local told = pack('<BI7I7I7', outcome, held, actual, excess)
  for index = 1, #ask.limits do
    told = told .. pack('<I7', returned and returned[index] or 0)
  end
  return 'S', told, peek(group, ask, 1)
end

local function settle_open(group, ask, hold, actual)
  local notes = group.notes
  for index, other in ipairs(notes.holds) do
    if other == hold then
      table.remove(notes.holds, index)
      break
    end
  end
  count_holds(notes)
  remember(group, hold.id, hold.plan, SETTLED, hold.cost, actual, now + hold.plan.remember)
  if group.has_logs then
    write_notes(group)
  end
  local returned = give_back(group, ask, hold, max(hold.cost - actual, 0))
  local excess = charge_beyond(group, ask, max(actual - hold.cost, 0))
  return settlement(group, ask, 0, hold.cost, actual, excess, returned)
end

-- Charges what was used of an id that is not open, and remembers it as settled.
local function settle_late(group, ask, outcome, kind, held, actual, charged)
  remember(group, ask.id, ask.terms, kind, held, actual, now + ask.terms.remember)
  if group.has_logs then
    write_notes(group)
  end
  return settlement(group, ask, outcome, held, actual, charge_beyond(group, ask, actual - charged))
end

local function settle(group, ask)
  local known, ignores = find(group, ask), ask.lease == 1
  local actual = ask.call == 3 and ask.number or nil
  if known and known.hold then
    return settle_open(group, ask, known.hold, actual or known.cost)
  elseif known and known.kind <= USED then
    return settlement(group, ask, 1, known.kind == USED and 0 or known.cost, known.actual, 0)
  elseif known then
    local charged = known.releases and 0 or known.cost
    if ignores then
      return settlement(group, ask, 2, known.cost, charged, 0)
    end
    return settle_late(group, ask, 2, SETTLED, known.cost, max(actual or known.cost, charged), charged)
  elseif ignores or ask.terms.is_shadow then
    return settlement(group, ask, 3, 0, 0, 0)
  end
  return settle_late(group, ask, 3, USED, 0, actual or 0, 0)
end

local function extend(group, ask)
  local known, state, left = find(group, ask), 3, 0
  if known and known.hold then
    local hold = known.hold
    if now + ask.lease > hold.expires then
      hold.expires = now + ask.lease
      count_holds(group.notes)
    end
    state, left = 0, hold.expires - now
  elseif known then
    state = known.kind == EXPIRED and 2 or 1
  end
  return 'X', pack('<BI7', state, left), peek(group, ask, 1)
end
--}

--{ hold_leases
-- What became of a lease: it is open, has ended by this call, or is lost to its stream, for four reasons.
local OPEN, ENDED, LOST_EXPIRED, LOST_SETTLED, LOST_MOVED, LOST_FORGOTTEN = 0, 1, 2, 3, 4, 5
local TAKE, RENEW, END = 11, 12, 13

-- A call about an open hold. Returns what became of it. Twin of src/core/algorithm/holds/lease.rs.
local function lease_open(group, ask, hold)
  local last = now + hold.plan.max_ttl
  -- A lease that ends later than the longest from now was given by a clock that stepped back since, and may have been shortened.
  local was_mine = ask.number > last and hold.expires < ask.number
  local is_mine = hold.expires == ask.number or hold.expires == ask.lease or was_mine
  local ends = hold.expires
  if ask.call == TAKE then
    -- One microsecond more tells the stream that had it, also where the clock stands.
    ends = ask.number == 1 and ends or max(now + ask.lease, ends + 1)
  elseif not is_mine then
    return LOST_MOVED
  else
    ends = ask.call == END and now or max(math.min(ask.lease, last), ends)
  end
  if ends ~= hold.expires then
    hold.expires = ends
    count_holds(group.notes)
  end
  return ask.call == END and ENDED or OPEN
end

-- A call of a stream about its hold. Returns its reply.
local function lease(group, ask)
  local known = find(group, ask)
  clamp_holds(group.notes)
  if not known or CALLS[known.kind] ~= 0 or known.name ~= ask.terms.name then
    return pack('<BI4I4I7BI7I7', 89, 0, 0, 0, LOST_FORGOTTEN, 0, 0)
  end
  local expired, released, units, has_more = end_due(group, ask)
  if has_more or ask.call == END and is_left_to_next(group, ask) then
    return pack('<BI4I4I7', 66, expired, released, units)
  end
  known = find(group, ask)
  local hold, became = known and known.hold, LOST_FORGOTTEN
  if hold then
    became = lease_open(group, ask, hold)
  elseif known then
    became = known.kind == EXPIRED and LOST_EXPIRED or LOST_SETTLED
  end
  if became == ENDED then
    local more = { end_due(group, ask) }
    expired, released, units = expired + more[1], released + more[2], units + more[3]
  end
  local is_open = became == OPEN
  local left = is_open and hold.expires - now or 0
  return pack('<BI4I4I7BI7I7', 89, expired, released, units, became, is_open and hold.expires or 0, left)
end
--}
