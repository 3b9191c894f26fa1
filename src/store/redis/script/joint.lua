-- Joint decisions: requests of several names that are charged together, or of which none is charged. request.lua has their layout.
-- Each is written at once, since its names may be those of the next one.
--
-- Most go a short way: each plan has one limit, each name stands in the decision once, and the states are usual ones. They are
-- statements in a loop, as in short/names.lua. All others go the general way, by functions that a call makes when it needs them.

do
--{ joint_names
-- The present group stands for all joint decisions of the call. It has a log if they have one.
first_logs, last_logs, names, single_limits, logs_of = {}, {}, {}, {}, {}
fits_of, charged_of, names_of, records_of, rests_of, expires_of, expired_of = {}, {}, {}, {}, {}, {}, {}
formats_of = { '<BI7', '<BI7I7', '<BI7I7I7' }
names_count, states_count, joints, at = unpack('<BBI2', request, first_at)
first_state, several = next_packed, nil
if logs > 0 then
  for name = 0, names_count - 1 do
    local log_count = byte(request, at)
    if not log_count or next_log + log_count > #keys + 1 then
      return { err = MALFORMED }
    end
    at, first_logs[name], last_logs[name] = at + 1, next_log, next_log + log_count - 1
    next_log = next_log + log_count
  end
--> log_elements
end
next_packed = next_packed + states_count
packed_end = next_packed
if packed_end > packed + 1 or states_count > names_count then
  return { err = MALFORMED }
end
--}
end

do
--{ joint_short
-- Decides joint decisions in their order, up to one that needs the general way.
needs_general = false
while decision < joints and not needs_general do
  decision = decision + 1
  joint_mode, count = byte(request, at, at + 1)
  if not count or joint_mode > UNDO then
    return { err = MALFORMED }
  end
  places, tells_instant = places + count, tells_instant or joint_mode == CHARGE_OF_PART
  begin, failed, written = at + 2, nil, 0
  -- `is_retold`: the whole is denied, and those that fit are read once more, without a charge.
  local index, all_fit, is_retold = 0, true, false
  at, needs_general = begin, joint_mode == UNDO
  while index < count and not needs_general do
    index = index + 1
    local name, plan, flags, place
    name, plan, flags, place, cost, at = unpack('<BBBI2I5', request, at)
    if not (is_retold and not fits_of[index]) then
--> joint_test
    end
    if index == count and not all_fit and joint_mode ~= 0 and not is_retold then
      is_retold, index, at = true, 0, begin
    end
  end
  if not needs_general and joint_mode ~= 0 and all_fit then
--> joint_store
  end
end
next_packed = packed_end
--}

--{ joint_test
-- Tests one request. Sets `fits_of`, its reply, and what a charge is to write.
local limit = single_limits[plan]
if limit == nil then
--> single_limit
end
next_packed = name < states_count and first_state + name
local value, known = next_packed and values[next_packed], names[name]
charges = joint_mode ~= 0 and flags <= 1 and not is_retold
if not limit or flags >= REPEATED or known and (known.problem or limit[1] == SLIDING_LOG) then
  -- A name that stands in it twice needs sums. What the general way knows of a log is written by it alone.
  needs_general = true
else
  if limit ~= present_limit then
    present_limit = limit
    kind, precision, prefix, limit_head, window, quota, burst, unit, step, bucket, bucket_end, calendar = table_unpack(limit, 1, 12)
  end
  local from, last_number, fits, record, fresh_at, before = 1, 0, nil, nil, nil, nil
  rings, length, may_merge = false, value and #value, false
  repeat
    if kind ~= SLIDING_LOG then
      if not (next_packed and (value or charges or is_retold)) or prefix and value and sub(value, 1, #prefix) ~= prefix then
        -- A peek of a key that is not there may be one of another type.
        break
      end
      from = prefix and #prefix + 1 or 1
    end
    if kind == SLIDING_LOG then
--> joint_log
--> decide
    end
  until true
  if fits == false and charges and limit[13] then
    -- The denial may begin a block.
    fits = nil
  elseif fits and charges then
    names_of[index], records_of[index] = name, record and prefix and prefix .. record or record
    if record and value and from <= #value and not (rings and #records_of[index] == from - 1) then
      -- It has records of other limits.
      fits = nil
    elseif record then
      rests_of[index] = rings and sub(value, from)
      expires_of[index], expired_of[index] = fresh_at - fresh_at % unit + unit, before and before - before % unit + unit
    end
  end
  if not is_retold then
    fits_of[index], charged_of[index] = fits, fits and charges
    all_fit = all_fit and (fits or flags % 2 == 1)
  end
  needs_general = fits == nil
  replies[final + 1 + place] = fits ~= nil and pack(formats_of[last_number], fits and 49 or 48, numbers[1], numbers[2], numbers[3])
end
--}

repeat
--{ joint_log
-- Tests a request by a name's only log, which is in no index. Sets `logs_of` to what its charge has to know.
local key, problem_of, used, frees_in, fresh_in = first_logs[name] == last_logs[name] and keys[first_logs[name]], nil, nil, nil, nil
if prefix or value or not key then
  break
end
--> log_decide
if fits and charges then
  logs_of[index] = { key, head, newest, used, gone, oldest_at, start, stored, window, unit, cost }
  used, frees_in, fresh_in = used + cost, 0, window
end
numbers[1], numbers[2], numbers[3], last_number = used, frees_in, fresh_in, 3
--}
until true

--{ single_limit
-- Sets `limit` to the fields of a plan's limit, where it has one; else to false.
local limits_at = plan_at[plan]
limit = false
local limits_count = limits_at and byte(request, limits_at)
if limits_count == 1 or limits_count == 129 then
  local at = limits_at + 1
--> limit
  limit = { kind, precision, prefix, limit_head, window, quota, burst, unit, step, bucket or false, bucket_end or 0, calendar,
    limits_count > 128 }
  present_limit = limit
end
single_limits[plan] = limit
--}

--{ joint_store
-- Writes what is charged. Where Redis refuses one, those before it are undone the general way.
for index = 1, count do
  if charged_of[index] and not failed then
    local name, record, rest = names_of[index], records_of[index], rests_of[index]
    local state = first_state + name
    local value = values[state]
    if not record then
--> joint_store_log
    elseif expires_of[index] == expired_of[index] and (rest or #record == #value) then
      local reply = try('SETRANGE', keys[state], '0', record)
      failed = type(reply) == 'table' and reply.err
    else
--> write
      failed = write(keys[state], value, record, expires_of[index], expired_of[index], rest)
    end
    if not failed then
      written = index
      if record then
        values[state] = rest and record .. rest or record
      end
      if record and names[name] then
        names[name].value, names[name].group = values[state], false
      end
    end
  end
end
needs_general = failed
--}

--{ joint_store_log
local key, head, newest, used, gone, oldest_at, start, stored, problem_of, frees_in, fresh_in, fits
key, head, newest, used, gone, oldest_at, start, stored, window, unit, cost = table_unpack(logs_of[index])
present_limit, prefix = nil, false
repeat
--> log_charge
until true
failed = problem_of
--}
end

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
    decide(group, part.plan, 2, part.cost)
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

-- Undoes charges of an earlier call, the last one first. Returns their replies, each as of a refund. Errors: some may be undone.
local function undo_charges(parts)
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
    local states = evaluate_all(part.limits, group.records, group.logs, false, 0)
    replies_of[index] = reply_of(true, states, readings_of(states, 0, false) .. befores[index])
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
local parts, refused = {}, false
present_limit = nil
if logs > 0 then
--> log
end
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
-- All fields at once: a table that grows costs as much as a decision.
names[name] = names[name] or {
  key = state and keys[state], value = state and values[state], first_log = first_logs[name] or 1,
  last_log = last_logs[name] or 0, group = false, problem = false, number = name, begun = false,
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
