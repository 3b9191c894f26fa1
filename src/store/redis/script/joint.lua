-- Joint decisions, the general way: requests of several names that are charged together, or of which none is charged. request.lua
-- has their layout. Each is written at once: its names may be those of the next one.

--{ joint_functions
-- A group of which nothing was read yet. Errors: under its name lies a key of another type.
local function open_group(key, first_log, last_log)
  return group_with(key, key and call('GET', key), first_log, last_log)
end

-- Tests the requests of a joint decision, each with its cost and the costs of those before it of the same group. Returns their
-- replies, and whether all may be charged. Sets `fits` of each.
local function test_joint(parts, charges)
  local sums, tested, all_fit, reads = {}, {}, true, nil
  if charges then
    -- As a charge that is denied reads them.
    reads = false
  end
  for index, part in ipairs(parts) do
    local group, limits = part.group, limits_of(part.plan)
    local sum = (sums[group] or 0) + part.cost
    local cost = sum
    for _, limit in ipairs(limits) do
      cost = math.min(cost, limit.burst)
    end
    local states, fits = evaluate_all(limits, group.records, group.logs, reads, cost)
    part.fits = fits and cost == sum
    tested[index] = (part.fits and '1' or '0') .. readings_of(states, cost, false)
    if part.fits or not part.is_shadow then
      sums[group], all_fit = sum, all_fit and part.fits
    end
  end
  return tested, all_fit
end

-- Gives back what was charged, at the instant at which it was.
local function undo_joint(charged)
  for index = #charged, 1, -1 do
    local part = charged[index]
    decide(part.group, part.plan, 2, part.cost)
    write_records(part.group)
  end
end

-- Charges the requests that fit. Returns their replies; nothing if one of them could not be charged after all, as where two plans
-- of other rates count for one name: a debt that one converted may be a microsecond more to the next.
local function charge_joint(parts, tested, charged)
  local replies_of = {}
  for index, part in ipairs(parts) do
    if not part.fits then
      local group = part.group
      local states = evaluate_all(limits_of(part.plan), group.records, group.logs, false, part.cost)
      replies_of[index] = '0' .. readings_of(states, part.cost, false)
    else
      local reply = decide(part.group, part.plan, 1, part.cost)
      if byte(reply) ~= 49 then
        part.fits = false
        undo_joint(charged)
        tested[index] = reply
        return tested
      end
      write_records(part.group)
      charged[#charged + 1], replies_of[index] = part, reply
    end
  end
  return replies_of
end

-- Decides requests together. Returns their replies. Errors: none is charged.
local function decide_joint(parts, charges)
  for _, part in ipairs(parts) do
    if part.group.problem then
      error(part.group.problem, 0)
    end
  end
  local tested, all_fit = test_joint(parts, charges)
  if not charges or not all_fit then
    return tested
  end
  local charged = {}
  local decided, result = pcall(charge_joint, parts, tested, charged)
  if not decided then
    for _, part in ipairs(parts) do
      -- What was not written is not so. What is known of a log may be wrong, so others leave it alone.
      local group = part.group
      group.records, group.is_changed, group.is_charged = parse_records(group.value or ''), false, false
      group.problem = group.has_logs and result
    end
    pcall(undo_joint, charged)
    error(result, 0)
  end
  return result
end
--}

do
--{ joints
-- The present group stands for all joint decisions of the call. It has a log if they have one, so that `log` was made.
logs = 0
local groups_of, at, count, joints = {}, first_at, nil, nil
count, joints, at = unpack('<BI2', request, at)
for index = 0, count - 1 do
  local packed_count, log_count
  packed_count, log_count, at = unpack('<BB', request, at)
  if next_packed + packed_count > packed + 1 or next_log + log_count > #keys + 1 then
    return { err = MALFORMED }
  end
  local key = packed_count == 1 and keys[next_packed]
  local is_open, group = pcall(open_group, key, next_log, next_log + log_count - 1)
  groups_of[index] = is_open and group or { problem = type(group) == 'table' and group.err or tostring(group) }
  next_packed, next_log = next_packed + packed_count, next_log + log_count
end
for _ = 1, joints do
  local parts, charges = {}, nil
  charges, count, at = unpack('<BB', request, at)
  for index = 1, count do
    local group, plan, is_shadow, place
    group, plan, is_shadow, place, cost, at = unpack('<BBBI2I5', request, at)
    parts[index] = { group = groups_of[group], plan = plan, is_shadow = is_shadow == 1, place = final + 1 + place, cost = cost }
    if not parts[index].group then
      return { err = MALFORMED }
    end
  end
  local decided, result = pcall(joint, parts, charges == 1)
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
--}
end
