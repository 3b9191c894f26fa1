-- Where a key stands by all limits of its plan, as an answer has it. Twin of KeyView in src/core/algorithm/holds.rs. In the reply: the
-- reply of request.lua; where it does not fit, when units come back I7, else 0; of a plan with slots: how many are taken I2, when one is
-- free I7, when the first and the last lease end I7 I7; when the first lease of the plan ends I7 if too many are open, else 0.

--{ hold_view
-- The time until the lease ends, of each open hold that takes a slot, ascending.
local function slot_ends(notes)
  local ends = {}
  for _, hold in ipairs(holds_of(notes)) do
    if hold.plan.has_slots and hold.expires > now then
      ends[#ends + 1] = hold.expires - now
    end
  end
  table.sort(ends)
  return ends
end

-- Whether what is told of a plan is so of its open holds: none has expired. end_due() leaves only holds of other plans, which release.
local function none_expired(plan)
  return plan.count == 0 or plan.first > now
end

-- Of the holds that are open, and of plans that `matches` is true of: how many there are, and when the first and the last lease end. These
-- two are exact for plans with slots, and for plans that release: only short.lua leaves them wider than they are.
local function open_holds(notes, matches)
  local open, first, last = 0, nil, 0
  for _, plan in ipairs(notes.plans) do
    if plan.count > 0 and matches(plan) then
      if none_expired(plan) then
        open, first, last = open + plan.count, math.min(first or plan.first, plan.first), max(last, plan.last)
      else
        for _, hold in ipairs(holds_of(notes)) do
          if hold.plan == plan and hold.expires > now then
            open, first, last = open + 1, math.min(first or hold.expires, hold.expires), max(last, hold.expires)
          end
        end
      end
    end
  end
  return open, first and first - now or 0, max(last - now, 0)
end

-- The slots that are taken: how many, when one is free, and when the first and the last lease end. Nil of a plan without.
local function slots_of(group, ask)
  if ask.terms.slots == 0 then
    return nil
  end
  local open, first, last = open_holds(group.notes, function(plan)
    return plan.has_slots
  end)
  local over, wait = open - ask.terms.slots, 0
  if over == 0 then
    wait = first
  elseif over > 0 then
    wait = slot_ends(group.notes)[over + 1]
  end
  return { open = open, wait = wait, first = first, last = last }
end

-- Maximum number of holds of a key, of all plans. How long a reserve waits that finds only holds which wait for a call of their own plan.
local OPEN_MAX, FULL_US = 1000, 1000000
-- The time until a hold ends, where too many are open of this plan, or there are too many of all plans of the key; else nil.
local function full_for(group, ask)
  local noted, name, is_exact = 0, ask.terms.name, true
  for _, plan in ipairs(group.notes.plans) do
    noted, is_exact = noted + plan.count, is_exact and (plan.name ~= name or plan.has_slots)
  end
  local function is_own(plan)
    return plan.name == name
  end
  local own, own_first = open_holds(group.notes, is_own)
  if own < ask.terms.max_open and noted < OPEN_MAX then
    return nil
  elseif own >= ask.terms.max_open and is_exact then
    return own_first
  end
  local first
  for _, hold in ipairs(holds_of(group.notes)) do
    if hold.expires > now and (own < ask.terms.max_open or is_own(hold.plan)) then
      first = math.min(first or hold.expires, hold.expires)
    end
  end
  return first and first - now or FULL_US
end

local function gives_back_to(plan, ask)
  return plan.releases and plan.name == ask.terms.name
end

-- When the first lease of an open hold of this plan ends that then gives its units back; 0 without one.
local function first_release(group, ask)
  local least
  for _, plan in ipairs(group.notes.plans) do
    if gives_back_to(plan, ask) then
      local open, first = open_holds(group.notes, function(other)
        return other == plan
      end)
      least = open > 0 and math.min(least or first, first, plan.max_ttl) or least
    end
  end
  return least or 0
end

-- Packs where a key stands. `cost` and `charged` are those of the readings; `room_wait` is that of full_for().
local function view(group, ask, fits, states, cost, charged, room_wait)
  local told = reply_of(fits, states, readings_of(states, cost, charged))
  told = told .. pack('<I7', fits and 0 or first_release(group, ask))
  local slots = slots_of(group, ask)
  if slots then
    told = told .. pack('<I2I7I7I7', slots.open, slots.wait, slots.first, slots.last)
  end
  return told .. pack('<I7', room_wait or 0)
end

-- For a call that is allowed.
local function present(group, ask)
  return view(group, ask, true, evaluate_all(ask.limits, group.records, group.logs, nil, 0), 0, false)
end

-- What a request of this cost would meet: a ShouldAllow or, of a plan with slots, a reserve.
local function peek(group, ask, cost)
  local states, fits = evaluate_all(ask.limits, group.records, group.logs, nil, cost)
  local slots = slots_of(group, ask)
  local room_wait = slots and full_for(group, ask)
  for index, state in ipairs(states) do
    state.begins = ask.begun[index]
  end
  fits = fits and (not slots or slots.wait == 0) and not room_wait
  return view(group, ask, fits, states, cost, false, room_wait)
end
--}
