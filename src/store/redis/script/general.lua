-- The general way: functions that decide any group, whatever its state holds. Lua makes them only in a call that needs them.
-- request.lua describes the two ways, and the words used here: group, fingerprint, record, stamp.

--{ general
-- Sets `decide_group` to the function that decides the present group, `limits_of` to the one that returns a plan's limits, and
-- `joint_functions` to the one that makes what joint decisions need.
if not decide_group then
  decide_group, limits_of, joint_functions = (function()
--> general_functions
  end)()
end
--}

--{ undecided
-- Decides the present group the general way, or by the functions for logs where it is one log. If that fails, the reply to each of
-- its requests is the error.
local last = final + n
-- Of joint decisions: how many there are, the present one, its mode, its number of requests, and where these begin. Then what Redis
-- said against a write, and the last request that was written.
local joints, decision, joint_mode, count, begin, failed, written = 0, 0, nil, nil, nil, nil, nil
local needs_general, at, packed_end, places, tells_instant = not problem, nil, nil, 0, false
-- The names of joint decisions, which have numbers from 0: how many there are, how many of them, the first ones, have a packed state,
-- and the index of the first state.
local names_count, states_count, first_state
-- By a name's number: its logs, and what the general way knows of it. By a plan's number: the fields of its limit.
local first_logs, last_logs, names, single_limits
-- If each name without a packed state has one log, and no other has any: a log's index among the keys, less its name's number.
local logs_at
-- The limit whose fields the variables of the present limit have.
local present_limit
-- By a request's place in its decision.
local fits_of, charged_of, names_of, records_of, rests_of, expires_of, expired_of, logs_of
-- Replies for one limit, by how many numbers its reading has.
local formats_of
-- What is asked of a joint decision, beside a peek, 0, and a charge, 1: a charge that may be undone later, and its undo.
local CHARGE_OF_PART, UNDO = 2, 3
-- A flag of a request whose name stands in its decision before.
local REPEATED = 4
if form == JOINT then
--> joint_names
end
repeat
  if form == JOINT then
--> joint_short
  end
  if needs_general and logs > 0 then
--> log
  end
  if needs_general and not log_limit then
--> general
  end
  if form == JOINT and needs_general then
--> joint_general
  end
until decision >= joints
if form == JOINT then
  if at <= #request then
    return { err = MALFORMED }
  end
  if tells_instant then
    replies[final + places + 1] = pack('<I7', now)
  end
elseif not problem then
  local decided, result
  if log_limit then
--> log_requests
  else
    local key = has_packed == 1 and keys[next_packed]
    decided, result = pcall(decide_group, key, key and values[next_packed], next_log, next_log + logs - 1, first_at, n)
  end
  problem = not decided and (type(result) == 'table' and result.err or tostring(result))
end
if problem then
  -- Requests of many callers share this call: a group that cannot be decided must not fail those after it.
  local refusal
--> refusal
  for index = final + 1, last do
    replies[index] = refusal
  end
  final = last
end
--}

--{ refusal
-- Sets `refusal` to the reply that tells this problem.
for _, word in ipairs({ 'READONLY', 'NOREPLICAS' }) do
  if string.find(problem, word, 1, true) then
    -- This node may not write, so no request of the call was charged. The error makes the client look for the node that may.
    return { err = word .. ' this node may not write' }
  end
end
refusal = sub(problem, 1, 200)
refusal = 'E' .. pack('<I2', #refusal) .. refusal
--}

--{ limits
local plans = {}
-- Formats of numbers by their bytes: to make one of a number would cost Lua as much as thirty look-ups.
local HEADS = { '<I1', '<I2', '<I3', '<I4', '<I5', '<I6' }

-- Parses the limits of a plan from the request, once in a call.
local function limits_of(plan)
  local limits, at = plans[plan], plan_at[plan]
  if limits then
    return limits
  elseif not at then
    error('tollgate: a request is of no plan of its call', 0)
  end
  limits = {}
  plans[plan] = limits
  local count = byte(request, at)
  local has_blocks = count > 128
  if has_blocks then
    count = count - 128
  end
  at = at + 1
  for index = 1, count do
    local kind, precision, fingerprint, window, quota, burst
    kind, precision, fingerprint, window, quota, burst, at = unpack('<BBBc0I7I7I7', request, at)
    -- As group.lua does: the last bytes of the prefix are a number. A bucket's prefix is its fingerprint and its rate.
    local prefix, last, bucket, calendar = fingerprint, 1, nil, nil
    if kind == TOKEN_BUCKET then
      fingerprint = sub(prefix, 1, byte(prefix) >= 248 and 5 or 1)
      last = math.min(#prefix, 6)
      bucket = HEADS[last] .. 'I7'
    elseif kind == FIXED_WINDOW_BY_CLOCK and precision > 0 then
      calendar = { unpack('<I7I7I7', request, at) }
      last, at = #prefix, calendar[4]
    end
    limits[index] = {
      prefix = sub(prefix, 1, #prefix - last), head = unpack(HEADS[last], prefix, #prefix - last + 1), bucket = bucket,
      bucket_end = last + 6, calendar = calendar,
      kind = kind, fingerprint = fingerprint, window = window, unit = unit_of(window), quota = quota, burst = burst,
      precision = precision,
      step = ceil(window / (precision > 0 and precision or quota)), is_indexed = #fingerprint > 1, block = false,
    }
  end
--> block_limits
  return limits
end

-- Returns the names of a group's logs by their window, with which each name ends. The name of the log index, which has no
-- window, is found as `index`.
local function logs_by_window(first, last)
  local logs = {}
  for index = first, last do
    local window = string.match(keys[index], 'log:(%d+)$')
    logs[window and tonumber(window) or 'index'] = keys[index]
  end
  return logs
end
--}

--{ evaluate
local READINGS = { '<I7', '<I7I7', '<I7I7I7' }

-- Decides a request under one limit, by the limit's record or by none, with the region `decide` that the short way uses too.
-- Returns whether the cost fits, the reading, the record, and whether a clock that stepped back changed the record. If `charges`
-- is true and the cost fits, the record is the one after the charge, else the present one. With nil, as for a peek, it is of no use.
local function evaluate_record(limit, value, charges, cost)
  local kind, precision, window, quota, burst = limit.kind, limit.precision, limit.window, limit.quota, limit.burst
  local limit_head, prefix, unit, step = limit.head, limit.prefix, limit.unit, limit.step
  local bucket, bucket_end, calendar, in_general = limit.bucket, limit.bucket_end, limit.calendar, true
  local from, last_number = #prefix + 1, 0
  local numbers, fits, record, fresh_at, before, clamped = {}, nil, nil, nil, nil, nil
  local several, may_merge, next_packed, rings, length = false, false, 1, false, value and #value
  repeat
    if not KINDS[kind] then
      break
--> decide
    end
  until true
  if not record then
    error('tollgate: a record that cannot be read', 0)
  end
  local reading = pack(READINGS[last_number], table_unpack(numbers, 1, last_number))
  return fits, reading, prefix .. record, clamped
end

-- The same by a rule of its own.
local function evaluate_by_rule(limit, value, charges, cost)
  local fingerprint = limit.fingerprint
  local fits, reading, after, clamped = rule_of(limit.kind).decide(limit, value and sub(value, #fingerprint + 1), charges, cost)
  return fits, reading, after and fingerprint .. after, clamped
end

-- Decides a request under one limit. Returns the limit's state (its log, or its reading and its record), and whether the cost
-- fits.
local function evaluate(limit, records, logs, charges, cost)
  if limit.kind == SLIDING_LOG then
    limit.log, limit.index = logs[limit.window], limit.is_indexed and logs.index
    local found = log.view(limit)
    local fits = found.used + cost <= limit.quota
    return { limit = limit, log = found, clamped = found.ahead ~= nil, denies = not fits }, fits
  end
  local record = records[limit.fingerprint]
  local value = record and record.text or nil
  local evaluate_limit = rule_of(limit.kind).decide and evaluate_by_rule or evaluate_record
  local fits, reading, after, clamped = evaluate_limit(limit, value, charges, cost)
  return { limit = limit, reading = reading, after = after, clamped = clamped, denies = not fits }, fits
end

-- Decides a request under each limit. Returns all states, and whether the cost fits every limit. `begun`: see with_blocks().
local function evaluate_all(limits, records, logs, charges, cost, begun)
  local states, all_fit, fits = {}, true, nil
  for index, limit in ipairs(limits) do
    states[index], fits = evaluate(limit, records, logs, charges, cost)
    all_fit = fits and all_fit
  end
  if limits.has_blocks then
    states.have_blocks = true
    all_fit = with_blocks(states, records, all_fit, begun)
  end
  return states, all_fit
end

-- A reading per limit, packed.
local function readings_of(states, cost, charged)
  if #states == 1 and states[1].reading then
    return states[1].reading
  end
  local parts = {}
  for index, state in ipairs(states) do
    parts[index] = state.reading or pack('<I7I7I7', log.reading(state.limit, state.log, cost, charged))
  end
  return table.concat(parts)
end
--}

--{ changes
-- The packed state of records in their order, whose rings begin at this offset.
local function with_rings(records, ring_at)
  local parts, rings, rings_end = {}, {}, 0
  for index, record in ipairs(records) do
    local fingerprint, text = record.fingerprint, record.text
    local kind = byte(fingerprint) % 8
    local spread = record.rule.spread
    if spread then
      local precision = kind == SLIDING_WINDOW_OF_PRECISION and byte(fingerprint, 2) or 64
      local front, ring, length = spread(sub(text, #fingerprint + 1), ring_at + rings_end, record.window, precision)
      text, rings_end = fingerprint .. front, rings_end + length
      if ring_at + rings_end > 65535 then
        error('tollgate: more sliding_windows than one state has room for', 0)
      end
      rings[#rings + 1] = ring .. rep('\0', length - #ring)
    end
    parts[index] = text
  end
  return table.concat(parts) .. (rings_end > 0 and pack('<B', RINGS) .. table.concat(rings) or '')
end

-- Sorts the records by fingerprint, if one was added, and joins them to a packed state; after a charge, without fresh records.
-- Returns it and its expiry.
local function join(records, charged)
  if records.is_unsorted then
    table.sort(records, in_order)
    records.is_unsorted = false
  end
  local kept, last, ring_at = {}, 0, 1
  for _, record in ipairs(records) do
    local fingerprint = record.fingerprint
    record.rule = record.rule or rule_of_record(fingerprint)
    local rule = record.rule
    record.window = record.window or window_of(fingerprint)
    local fresh_at = record.text and rule.fresh_at(record.text, #fingerprint + 1, record.window)
    if fresh_at and (fresh_at > now or not charged) then
      kept[#kept + 1] = record
      ring_at = ring_at + (rule.spread and #fingerprint + 30 or #record.text)
      local unit = unit_of(record.window)
      last = max(last, fresh_at - fresh_at % unit + unit)
    else
      record.text = nil
    end
  end
  return with_rings(kept, ring_at), last
end

-- Writes a group's packed state, if its records changed since it was written. If none is left after a refund, deletes the key.
local function write_records(group)
  if not group.is_changed then
    return
  end
--> write
  local after, expires = join(group.records, group.is_charged)
  if after == '' then
    call('DEL', group.key)
    after = false
  else
    local problem = write(group.key, group.value, after, expires)
    if problem then
      error(problem, 0)
    end
  end
  group.value, group.is_changed, group.is_charged = after, false, false
end

-- Writes a group's packed state and then the logs among these states. If Redis refuses to, nothing is written: the packed state
-- is as before, by a command that was not refused.
local function write_all(group, writes, states)
  local key, before = group.key, group.value
  write_records(group)
  local written, why = pcall(writes, states)
  if not written and group.value ~= before then
    if before then
      local _, expires = join(parse_records(before), false)
      write(key, false, before, expires)
    else
      try('DEL', key)
    end
  end
  if not written then
    error(why, 0)
  end
end

-- Charges every limit if the cost fits all. Otherwise takes over only the states that a clock that stepped back changed, and blocks.
local function charge(group, limits, states, fits, cost)
  for _, state in ipairs(states) do
    local writes = fits or state.clamped
    if state.log and writes then
      if fits then
        log.charge(state.log, cost)
      end
      log.prepare(state.limit, state.log)
    elseif writes then
      set_record(group.records, state.limit, state.after)
      group.is_changed, group.is_charged = true, group.is_charged or fits
    end
  end
  if limits.has_blocks then
    write_blocks(group, states, fits)
  end
  if group.has_logs then
    write_all(group, log.write, states)
  end
end

-- Gives units back to every limit that has counted some, the newest first. An undo has an instant for each limit, and gives back
-- those that were charged then.
local function refund(group, states, cost, instants)
  instants = instants or {}
  for index, state in ipairs(states) do
    local limit = state.limit
    if state.log then
      log.find(limit, state.log, cost, instants[index])
    else
      local taken, left = rule_of(limit.kind).refund(sub(state.after, #limit.fingerprint + 1), cost, limit, instants[index])
      if taken then
        set_record(group.records, limit, left and limit.fingerprint .. left)
        group.is_changed = true
      end
    end
  end
  if group.has_logs then
    write_all(group, function()
      for index, state in ipairs(states) do
        if state.log then
          log.refund(state.limit, state.log, cost, instants[index])
        end
      end
    end)
  end
end
--}

--{ general_parts
-- Splits a stamp into its time and its tag; see decide.lua.
local function read_time(value, at)
  local low, top = unpack('<I6B', value, at)
  local tag = floor(top / 32)
  return low + (top - tag * 32) * STAMP_TOP, tag
end

--> records
local KINDS = {
  [FIXED_WINDOW_BY_CLOCK] = fixed_window, [FIXED_WINDOW_BY_FIRST_REQUEST] = fixed_window, [SLIDING_COUNTER] = sliding_counter,
  [SLIDING_WINDOW] = sliding_window, [SLIDING_WINDOW_OF_PRECISION] = sliding_window, [TOKEN_BUCKET] = gcra,
}
-- By kind, the functions for records of a packed state: size() is the length of a payload, fresh_at() is when it counts nothing
-- any more, and refund() is what a refund leaves of it.
local rules = {}

local function rule_of(kind)
  rules[kind] = rules[kind] or KINDS[kind]()
  return rules[kind]
end

--> block_rule
local function unit_of(window)
  return max(floor(window / 8), 1000000)
end

--> limits
--> stored
--> block_functions
--> evaluate
--> changes

-- Decides one request. Returns its reply.
local function decide(group, plan, mode, cost)
  if mode > 1 then
    error('tollgate: a request has an unknown mode', 0)
  elseif mode ~= 1 and group.key and not group.value then
    -- MGET reads a key of another type as if it were not there.
    call('GET', group.key)
  end
  local records, logs, limits = group.records, group.logs, limits_of(plan)
  local states, fits = evaluate_all(limits, records, logs, mode == 1 or nil, cost)
  if mode == 1 then
    if not fits then
      states = evaluate_all(limits, records, logs, false, cost)
    end
    charge(group, limits, states, fits, cost)
  end
  return reply_of(fits, states, readings_of(states, cost, fits and mode == 1))
end

local function group_with(key, value, first_log, last_log)
  return {
    key = key, value = value, records = parse_records(value or ''),
    logs = logs_by_window(first_log, last_log), has_logs = last_log >= first_log,
  }
end

-- A group's packed state is read once and written once, behind its last request: many plans may have left many records. Only
-- beside logs it is written with each request, so that a request is charged everywhere or nowhere.
local function decide_group(key, value, first_log, last_log, at, count)
  if value and has_rings then
    -- Of which only the beginning was read.
    value = call('GET', key)
  end
  local group = group_with(key, value, first_log, last_log)
  local before = final
  for index = 1, count do
    local plan, mode, cost
    plan, mode, cost, at = unpack('<BBI5', request, at)
    replies[before + index] = decide(group, plan, mode, cost)
    if group.has_logs then
      final = before + index
    end
  end
  write_records(group)
  final = before + count
end

--}

--{ general_functions
--> general_parts
return decide_group, limits_of, function()
--> joint_functions
  return decide_joint, undo_charges, undo_joint
end
--}
