-- What a hold gives back to each limit, at the place of its charge, and what is charged beyond a limit. Twin of
-- src/core/algorithm/holds/give_back.rs, and of charge_beyond() in src/core/algorithm.rs and gcra.rs.

--{ hold_bucket_units
-- Of so many units, those that are in what the charge owes yet, and in what the bucket owes at all. `full` is when the bucket would have been
-- full after the charge, and later by what had been given back to it until then.
local owed = full - given - now
owed = owed < debt and owed or debt
units = owed <= 0 and 0 or owed < units * emission and floor(owed / emission) or units
--}

--{ hold_give_back
-- Maximum number of charges in a log behind that of a hold: they are written anew. Behind more, it gives nothing back.
local CHARGES_AFTER_MAX, CHARGES_PER_US = 1000, 1.5
-- Work of giving back to one limit, and of searching a log, in microseconds.
local GIVE_BACK_WORK, SEARCH_WORK = 14, 60
-- Maximum number of units that a limit counts, and that a log does.
local UNITS_MAX, LOG_UNITS_MAX = 1099511627775, 131071 -- 2^40 - 1, 2^17 - 1

-- The debt of a bucket as a record has it: the debt, the time of a unit, and the record's payload.
local function debt_of(limit, state)
  local payload = sub(state.after, #limit.fingerprint + 1)
  local quota, tat = unpack('<I' .. byte(payload) % 8 .. 'I7', payload, 2)
  return tat - now, ceil(limit.window / quota), payload
end

-- Whole units of what the charge owes yet.
local function bucket_given(group, limit, hold, bucket, units)
  local full, given = hold.full[bucket], group.notes.given[limit.fingerprint] or 0
  local debt, emission, payload = debt_of(limit, evaluate(limit, group.records, group.logs, false, 0))
--> hold_bucket_units
  if units > 0 then
    local _, rest = rule_of(limit.kind).refund(payload, units, limit)
    set_record(group.records, limit, rest and limit.fingerprint .. rest)
    group.is_changed = true
    note_given(group.notes, limit.fingerprint, units * emission)
  end
  return units
end

local function by_place(a, b)
  return a.ends < b.ends
end

-- Has units of the instant that was found not be there until the answer is made: a look writes nothing. Returns how many.
local function leave_out(group, state, units)
  local parts, ends, part = state.left_out or {}, state.undone.last.units, nil
  for _, other in ipairs(parts) do
    part = other.ends == ends and other or part
  end
  if not part then
    part = { ends = ends, units = 0 }
    parts[#parts + 1] = part
    table.sort(parts, by_place)
  end
  units = math.min(units, state.undone.units - part.units)
  group.left_out[#group.left_out + 1] = { state = state, used = state.used, newest = state.newest }
  part.units = part.units + units
  state.left_out, state.used, state.asked = parts, state.used - units, nil
  if state.used > 0 then
    -- The newest unit of those that stay is the last that has to leave.
    local _, leaves_in = log.reading({ quota = 0, window = 0 }, state, 0, false)
    state.newest, state.asked = now + leaves_in, nil
  end
  return units
end

local function put_back(left_out)
  for index = #left_out, 1, -1 do
    local state = left_out[index].state
    state.used, state.newest, state.left_out, state.asked = left_out[index].used, left_out[index].newest, nil, nil
  end
end

-- Maximum work of giving units of a hold back to the limits of a call, in microseconds.
local function give_back_work(group, ask)
  local work = 0
  for _, limit in ipairs(ask.limits) do
    work = work + GIVE_BACK_WORK
    if limit.kind == SLIDING_LOG then
      work = work + SEARCH_WORK + math.min(call('LLEN', group.logs[limit.window]), CHARGES_AFTER_MAX) / CHARGES_PER_US
    end
  end
  return work
end

-- Whether that is more than the script call may still do.
local function is_left_to_next(group, ask)
  return ask.left and give_back_work(group, ask) > ask.left
end

-- Units at the instant of the charge that are still there.
local function log_given(group, limit, state, hold, units)
  log.find(limit, state, units, hold.at)
  local undone = state.undone
  local after = undone and state.last.index - undone.last.index
  if not undone or after > CHARGES_AFTER_MAX then
    return 0
  end
  if group.is_peek then
    return leave_out(group, state, units)
  end
  units, group.more_work = math.min(units, undone.units), group.more_work + after / CHARGES_PER_US
  log.refund(limit, state, units, hold.at)
  return units
end

local function counted(reading)
  local count, second = unpack('<I7I7', reading .. '\0\0\0\0\0\0\0')
  return count, second
end

-- Units of the window or of the run of the charge.
local function record_given(group, limit, hold, units)
  local state = evaluate(limit, group.records, group.logs, false, 0)
  local count, second = counted(state.reading)
  -- A run may be of another cell than the charge.
  local any_cell = setmetatable({ step = GIVEN_MAX }, { __index = limit })
  local payload = sub(state.after, #limit.fingerprint + 1)
  local taken, left = rule_of(limit.kind).refund(payload, units, any_cell, hold.at)
  if not taken then
    return 0
  end
  set_record(group.records, limit, left and limit.fingerprint .. left)
  group.is_changed = true
  local now_count, now_second = counted(evaluate(limit, group.records, group.logs, false, 0).reading)
  if limit.kind == SLIDING_COUNTER then
    return count + second - now_count - now_second
  end
  return count - now_count
end

-- Gives back units of a hold. Returns how many each limit gave back; none where the limits were edited since.
local function give_back(group, ask, hold, units)
  local returned, bucket, most = {}, 0, 0
  for index, limit in ipairs(ask.limits) do
    returned[index] = 0
    bucket = limit.kind == TOKEN_BUCKET and bucket + 1 or bucket
    local gives = units > 0 and hold.plan.limits_hash == ask.terms.limits_hash
    if gives and limit.kind == TOKEN_BUCKET then
      returned[index] = bucket_given(group, limit, hold, bucket, units)
    elseif gives and limit.kind == SLIDING_LOG then
      local state = evaluate(limit, group.records, group.logs, false, 0)
      returned[index] = log_given(group, limit, state.log, hold, units)
    elseif gives then
      returned[index] = record_given(group, limit, hold, units)
    end
    most = max(most, returned[index])
  end
  return returned, most
end
--}

--{ hold_charge_beyond
-- The record after a charge that fits whatever the limit is.
local function charged_anyway(limit, group, units)
  local quota = limit.kind ~= TOKEN_BUCKET and GIVEN_MAX or nil
  local without_bound = setmetatable({ quota = quota, burst = GIVEN_MAX }, { __index = limit })
  return evaluate(without_bound, group.records, group.logs, true, units).after
end

-- The record of a bucket whose debt grows to the time of burst and quota at most. A greater debt stays as it is.
local function bucket_beyond(group, limit, units)
  -- At the rate of the limit.
  local record = charged_anyway(limit, group, 0)
  local debt = debt_of(limit, { after = record })
  local most = limit.burst + limit.quota
  debt = max(math.min(debt + math.min(units, most) * limit.step, most * limit.step), debt)
  local width = limit.quota < 256 and 1 or limit.quota < 65536 and 2 or limit.quota < 16777216 and 3 or limit.quota < 4294967296 and 4 or 5
  local late = debt > limit.window
  local payload = pack('<BI' .. width .. 'I7', width + (late and 8 or 0), limit.quota, now + debt) .. (late and pack('<I7', now) or '')
  set_record(group.records, limit, limit.fingerprint .. payload)
  group.is_changed, group.is_charged = true, true
end

-- Charges a limit what has happened, though it is passed; what would go above its bound is dropped.
local function beyond(group, limit, units)
  local state = evaluate(limit, group.records, group.logs, false, 0)
  if state.log then
    units = math.min(units, max(LOG_UNITS_MAX - state.log.used, 0))
    if units > 0 then
      log.charge(state.log, units)
    end
    log.prepare(limit, state.log)
  elseif limit.kind == TOKEN_BUCKET then
    bucket_beyond(group, limit, units)
  else
    units = math.min(units, max(UNITS_MAX - counted(state.reading), 0))
    if units > 0 then
      local after = charged_anyway(limit, group, units)
      set_record(group.records, limit, after)
      group.is_changed, group.is_charged = true, true
    elseif state.clamped then
      set_record(group.records, limit, state.after)
      group.is_changed = true
    end
  end
  return state
end

-- Charges what has happened to every limit. One that is left without a unit blocks the key, if it has a block. Returns the units, 0 if
-- there is no limit.
local function charge_beyond(group, ask, units)
  if units == 0 or not ask.limits[1] then
    return 0
  end
  group.notes.left = nil
  local states, begun = {}, {}
  for index, limit in ipairs(ask.limits) do
    states[index] = beyond(group, limit, units)
    local _, has_one = evaluate(limit, group.records, group.logs, false, 1)
    local block = limit.block
    if block and not has_one and block_left(block, group.records) == 0 then
      begun[block.fingerprint], ask.begun[index] = block, true
    end
  end
  set_blocks(group, begun)
  if group.has_logs then
    write_all(group, log.write, states)
  end
  return units
end
--}
