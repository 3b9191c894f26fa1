-- Joint decisions: requests of several names that are charged together, or of which none is charged. request.lua has their layout.
-- Each is written at once, since its names may be those of the next one. Where each plan has one limit, no log, and the states are
-- usual ones, a request is evaluated once and written as the short way does. All others go the general way.

--{ joint_functions
-- What is known of a name: its state as it was read or written last, and, where the general way needs it, its group.
local function group_of(name)
  name.group = name.group or group_with(name.key, name.key and call('GET', name.key), name.first_log, name.last_log)
  return name.group
end

local own_name = {}

-- Evaluates a request as the short way does, where its plan has one limit, no log, and its name's state is a usual one; else returns
-- nil. Returns its reply. Sets `fits`, and what a charge is to write.
local function evaluate_short(part, charges)
  local name, limit = part.name, part.limit
  local value, prefix = name.value, limit.prefix
  if not name.key or prefix ~= '' and value and sub(value, 1, #prefix) ~= prefix then
    return nil
  end
  own_name[1] = name.key
  local fits, reading, record, _, fresh_at, before, from, rings = evaluate_record(limit, value, charges, part.cost, own_name)
  if fits == nil then
    return nil
  elseif fits and charges then
    if not (rings and #record == from - 1) and value and from <= #value then
      -- It has records of other limits.
      return nil
    end
    part.record, part.rest, part.rings = record, rings and sub(value, from) or '', rings
    local unit = limit.unit
    part.expires, part.expired = fresh_at - fresh_at % unit + unit, before and before - before % unit + unit
  end
  part.fits = fits
  return (fits and '1' or '0') .. reading
end

-- Tests the requests of a joint decision the short way. Returns their replies, and whether all may be charged; nil if one of them
-- needs the general way.
local function test_short(parts, charges)
  local replies_of, all_fit = {}, true
  for index, part in ipairs(parts) do
    local charged = charges and not part.is_peek
    replies_of[index] = part.limit and (charged or part.name.value) and evaluate_short(part, charged)
    if not replies_of[index] then
      return nil
    end
    all_fit = all_fit and (part.fits or part.is_shadow)
  end
  if charges and not all_fit then
    for index, part in ipairs(parts) do
      -- The numbers without a charge.
      replies_of[index] = not part.fits and replies_of[index] or evaluate_short(part, false)
    end
  end
  return replies_of, all_fit
end

-- Writes what evaluate_short has set.
local function charge_short(parts, charged)
--> write
  for _, part in ipairs(parts) do
    if part.fits and not part.is_peek then
      local name = part.name
      local problem = write(name.key, name.value, part.record, part.expires, part.expired, part.rings)
      if problem then
        error(problem, 0)
      end
      name.value, name.group, charged[#charged + 1] = part.record .. part.rest, false, part
    end
  end
end

-- Tests the requests of a joint decision, each with its cost and the costs of those before it of the same name. Returns their
-- replies, and whether all may be charged. Sets `fits` of each.
local function test_joint(parts, charges)
  local sums, tested, all_fit = {}, {}, true
  for index, part in ipairs(parts) do
    local reads = nil
    if charges and not part.is_peek then
      -- As a charge that is denied reads them.
      reads = false
    end
    local name, group, limits = part.name, group_of(part.name), part.limits
    local sum = (sums[name] or 0) + part.cost
    local cost = sum
    for _, limit in ipairs(limits) do
      cost = math.min(cost, limit.burst)
    end
    local states, fits = evaluate_all(limits, group.records, group.logs, reads, cost)
    part.fits = fits and cost == sum
    tested[index] = (part.fits and '1' or '0') .. readings_of(states, cost, false)
    if part.fits or not part.is_shadow then
      -- A peek takes nothing from those behind it.
      sums[name], all_fit = part.is_peek and sum - part.cost or sum, all_fit and part.fits
    end
  end
  return tested, all_fit
end

-- Gives back what was charged in this call, at the instant at which it was.
local function undo_joint(charged)
  for index = #charged, 1, -1 do
    local part = charged[index]
    local group = group_of(part.name)
    decide(group, part.plan, 2, part.cost)
    write_records(group)
    part.name.value = group.value
  end
end

-- Charges the requests that fit. Returns their replies; nothing if one of them could not be charged after all, as where two plans
-- of other rates count for one name: a debt that one converted may be a microsecond more to the next.
local function charge_joint(parts, tested, charged)
  local replies_of = {}
  for index, part in ipairs(parts) do
    local group = group_of(part.name)
    if not part.fits or part.is_peek then
      local reads = nil
      if not part.is_peek then
        reads = false
      end
      local states = evaluate_all(part.limits, group.records, group.logs, reads, part.cost)
      replies_of[index] = (part.fits and '1' or '0') .. readings_of(states, part.cost, false)
    else
      local reply = decide(group, part.plan, 1, part.cost)
      if byte(reply) ~= 49 then
        part.fits = false
        undo_joint(charged)
        tested[index] = reply
        return tested
      end
      write_records(group)
      part.name.value = group.value
      charged[#charged + 1], replies_of[index] = part, reply
    end
  end
  return replies_of
end

-- Undoes charges of an earlier call, the last one first. Returns their replies, each as of a refund. Errors: some may be undone.
local function undo_parts(parts)
  local replies_of, befores = {}, {}
  for index, part in ipairs(parts) do
    local group = group_of(part.name)
    befores[index] = readings_of(evaluate_all(part.limits, group.records, group.logs, false, 0), 0, false)
  end
  for index = #parts, 1, -1 do
    local part, group = parts[index], group_of(parts[index].name)
    if part.cost > 0 then
      refund(group, evaluate_all(part.limits, group.records, group.logs, false, 0), part.cost, part.instants)
      write_records(group)
    end
  end
  for index, part in ipairs(parts) do
    local group = group_of(part.name)
    replies_of[index] = '1' .. readings_of(evaluate_all(part.limits, group.records, group.logs, false, 0), 0, false) .. befores[index]
  end
  return replies_of
end

-- Decides requests together. Returns their replies. Errors: none is charged.
local function decide_joint(parts, charges)
  local replies_of, all_fit = test_short(parts, charges)
  local is_short = replies_of ~= nil
  if not is_short then
    replies_of, all_fit = test_joint(parts, charges)
  end
  if not charges or not all_fit then
    return replies_of
  end
  local charged, decided, result = {}, nil, nil
  if is_short then
    decided, result = pcall(charge_short, parts, charged)
    result = decided and replies_of or result
  else
    decided, result = pcall(charge_joint, parts, replies_of, charged)
  end
  if not decided then
    for _, part in ipairs(parts) do
      -- What was not written is not so. What is known of a log may be wrong, so others leave it alone.
      part.name.problem, part.name.group = part.name.last_log >= part.name.first_log and result, false
    end
    pcall(undo_joint, charged)
    error(result, 0)
  end
  return result
end

-- The plan's limits, and the limit of a plan that has one, no log.
local function limits_and_single(plan)
  local limits = limits_of(plan)
  return limits, #limits == 1 and limits[1].kind ~= SLIDING_LOG and limits[1] or nil
end
--}

do
--{ joints
-- What is asked of a joint decision, beside a peek, 0, and a charge, 1: a charge that may be undone later, and its undo.
local CHARGE_OF_PART, UNDO = 2, 3
-- The present group stands for all joint decisions of the call. It has a log if they have one, so that `log` was made.
logs = 0
local names, at, count, joints = {}, first_at, nil, nil
count, joints, at = unpack('<BI2', request, at)
for index = 0, count - 1 do
  local packed_count, log_count
  packed_count, log_count, at = unpack('<BB', request, at)
  if next_packed + packed_count > packed + 1 or next_log + log_count > #keys + 1 then
    return { err = MALFORMED }
  end
  local key = packed_count == 1 and keys[next_packed]
  -- All fields at once: a table that grows costs as much as a decision.
  names[index] = {
    key = key, value = key and values[next_packed], first_log = next_log, last_log = next_log + log_count - 1, group = false,
    problem = false, decision = 0,
  }
  next_packed, next_log = next_packed + packed_count, next_log + log_count
end
local places, tells_instant = 0, false
for decision = 1, joints do
  local parts, refused, joint_mode = {}, false, nil
  joint_mode, count, at = unpack('<BB', request, at)
  if joint_mode > UNDO then
    return { err = MALFORMED }
  end
  places, tells_instant = places + count, tells_instant or joint_mode == CHARGE_OF_PART
  for index = 1, count do
--> joint_request
  end
  local decided, result = false, refused
  if not refused then
    decided, result = pcall(joint_mode == UNDO and undo_charges or joint, parts, joint_mode ~= 0)
  end
  local problem = not decided and (type(result) == 'table' and result.err or tostring(result))
  local refusal
  if problem then
--> refusal
  end
  for index, part in ipairs(parts) do
    replies[part.place] = refusal or result[index]
  end
end
if at <= #request then
  return { err = MALFORMED }
end
if tells_instant then
  replies[final + places + 1] = pack('<I7', now)
end
--}

for index = 1, count do
--{ joint_request
-- Reads a request of the present joint decision.
local name, plan, flags, place
name, plan, flags, place, cost, at = unpack('<BBBI2I5', request, at)
name = names[name]
if not name then
  return { err = MALFORMED }
end
local limits, limit = single_of(plan)
if name.decision == decision then
  -- A name that stands in it twice needs sums.
  parts[1].limit, limit = nil, nil
end
name.decision = decision
refused = refused or name.problem
parts[index] = {
  name = name, plan = plan, limits = limits, limit = limit, is_shadow = flags % 2 == 1, is_peek = flags > 1,
  place = final + 1 + place, cost = cost, fits = false, record = false, rest = '', rings = false, expires = 0, expired = false,
  instants = false,
}
if joint_mode == UNDO then
  local instants = {}
  for limit_index = 1, #limits do
    instants[limit_index], at = unpack('<I7', request, at)
  end
  parts[index].instants = instants
end
--}
end
end
