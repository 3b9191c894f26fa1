-- The general way of joint decisions: functions that a call makes when it needs them. short/joint.lua has the short way.

--{ joint_functions
-- What is known of a name: its state as it was read or written last, and its group.
local function group_of(name)
  name.group = name.group or group_with(name.key, name.key and call('GET', name.key), name.first_log, name.last_log)
  return name.group
end

-- Tests the requests of a joint decision, each with its cost and the costs of those before it of the same name. Returns their
-- replies, and whether all may be charged. Sets `fits` of each.
local function test_joint(parts, charges)
  local sums, tested, all_fit = {}, {}, true
  for _, part in ipairs(parts) do
    part.name.begun = false
  end
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
    local states, fits = evaluate_all(limits, group.records, group.logs, reads, cost, name.begun)
    part.fits, part.states, part.tested = fits and cost == sum, states, cost
    if limits.has_blocks and charges and not part.is_peek and not fits and cost == sum then
      name.begun = name.begun or {}
      begin_blocks(states, name.begun)
    end
    tested[index] = reply_of(part.fits, states, readings_of(states, cost, false))
    if part.fits or not part.is_shadow then
      -- A peek takes nothing from those behind it.
      sums[name], all_fit = part.is_peek and sum - part.cost or sum, all_fit and part.fits
    end
  end
  for index, part in ipairs(parts) do
    if part.name.begun and part.limits.has_blocks and not all_fit then
      -- The numbers after the decision, in which blocks began.
      with_blocks(part.states, part.name.group.records, false, part.name.begun)
      tested[index] = reply_of(part.fits, part.states, readings_of(part.states, part.tested, false))
    end
  end
  return tested, all_fit
end

-- Writes the blocks that began in a joint decision. What was charged before stood in no block, so they come last.
local function write_begun(parts)
  for _, part in ipairs(parts) do
    local name, group = part.name, part.name.group
    if name.begun then
      set_blocks(group, name.begun)
      name.begun = false
    end
    if group then
      write_records(group)
      name.value = group.value
    end
  end
end

-- Gives back what was charged in this call, at the instant at which it was.
local function undo_joint(charged)
  for index = #charged, 1, -1 do
    local part = charged[index]
    local group = group_of(part.name)
    refund(group, evaluate_all(part.limits, group.records, group.logs, false, 0), part.cost)
    write_records(group)
    part.name.value = group.value
  end
end

-- Charges the requests that fit, and returns their replies. If one cannot be charged after all, undoes the others and returns
-- the replies of the test, with that denial in its place. That can happen where plans of different rates count for one name: a
-- converted debt may be a microsecond larger.
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
      for place, state in ipairs(part.states) do
        states[place].left, states[place].begins = state.left, state.begins
      end
      replies_of[index] = reply_of(part.fits, states, readings_of(states, part.cost, false))
    else
      local reply = decide(group, part.plan, 1, part.cost)
      if byte(reply) ~= 49 then
        part.fits = false
        undo_joint(charged)
        write_begun(parts)
        tested[index] = reply
        return tested
      end
      write_records(group)
      part.name.value = group.value
      charged[#charged + 1], replies_of[index] = part, reply
    end
  end
  write_begun(parts)
  return replies_of
end

-- Undoes charges of an earlier call, the last one first. Returns what is there after it. Errors: some may be undone.
local function undo_charges(parts)
  local replies_of = {}
  for index = #parts, 1, -1 do
    local part, group = parts[index], group_of(parts[index].name)
    if part.cost > 0 then
      refund(group, evaluate_all(part.limits, group.records, group.logs, false, 0), part.cost, part.instants)
      write_records(group)
    end
  end
  for index, part in ipairs(parts) do
    local group = group_of(part.name)
    local states = evaluate_all(part.limits, group.records, group.logs, false, 0)
    replies_of[index] = reply_of(true, states, readings_of(states, 0, false))
  end
  return replies_of
end

-- Decides requests together. Returns their replies. Errors: none is charged.
local function decide_joint(parts, charges)
  local tested, all_fit = test_joint(parts, charges)
  if not charges then
    return tested
  end
  local charged, decided, result = {}, nil, nil
  if all_fit then
    decided, result = pcall(charge_joint, parts, tested, charged)
  else
    decided, result = pcall(write_begun, parts)
    result = decided and tested or result
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
--}

do
--{ joint_general
-- Decides one joint decision the general way, or undoes what the short way had written of it when Redis refused the rest.
if not decide_joint then
  -- What decides requests together, what undoes charges of an earlier call, and what undoes those of this call.
  decide_joint, undo_charges, undo_joint = joint_functions()
end
local parts, refused = {}, false
present_limit = nil
at = begin
for index = 1, count do
--> joint_request
end
local decided, result = false, failed or refused
if failed then
  local charged = {}
  for index = 1, written do
    charged[#charged + 1] = charged_of[index] and parts[index] or nil
  end
  pcall(undo_joint, charged)
elseif not refused then
  decided, result = pcall(joint_mode == UNDO and undo_charges or decide_joint, parts, joint_mode ~= 0)
end
local problem = not decided and (type(result) == 'table' and result.err or tostring(result))
local refusal
if problem then
--> refusal
end
for index, part in ipairs(parts) do
  replies[part.place] = refusal or result[index]
  if part.name.number < states_count then
    values[first_state + part.name.number] = part.name.value
  end
end
--}

--{ joint_request
-- Reads a request of the present joint decision.
local name, plan, flags, place
name, plan, flags, place, cost, at = unpack('<BBBI2I5', request, at)
if name >= names_count then
  return { err = MALFORMED }
end
local state = name < states_count and first_state + name
local log_at = logs_at and not state and logs_at + name
-- All fields at once: a table that grows costs as much as a decision.
names[name] = names[name] or {
  key = state and keys[state], value = state and values[state], first_log = log_at or first_logs[name] or 1,
  last_log = log_at or last_logs[name] or 0, group = false, problem = false, number = name, begun = false,
}
refused = refused or names[name].problem
parts[index] = {
  name = names[name], plan = plan, limits = limits_of(plan), is_shadow = flags % 2 == 1, is_peek = flags % REPEATED > 1,
  place = final + 1 + place, cost = cost, fits = false, instants = false, states = false, tested = 0,
}
if joint_mode == UNDO then
  local instants = {}
  for limit_index = 1, #parts[index].limits do
    instants[limit_index], at = unpack('<I7', request, at)
  end
  parts[index].instants = instants
end
--}
end
