-- sliding_log: at most quota in any window, every unit at its own time. Twin of src/algorithm/sliding_log.rs.
-- Kept in a LIST of its own: a header, then an element per charge, oldest first, whatever the charge's units are.
--   header   a time I7, which is never more than a window away from any charge's, and a total I3: units up to the first charge
--   charge   I6I2: 47 bits of its time, in microseconds, and 17 bits of the total of units up to it, itself included; the
--            total's top bit is the I6's top bit
-- Reading: used, frees_in, fresh_in.
-- What was read or written stands for the rest of the call. A search looks at 2 log2(n) of n elements at most, and at one or
-- two where charges are even; a write adds at most three elements.

-- The rule is written twice, as that of a token_bucket is: what most calls find needs no search and no table, and costs half as
-- much. That is one request for a log of which nothing, the first charge alone or everything is gone, and nothing lies ahead.

repeat
--{ log_decide
local front = try('LRANGE', key, '0', '2')
local base, start, oldest, oldest_units, newest, stored, gone = now, 0, now, 0, now, 0, 0
if front[2] then
  base, start = unpack('<I7I3', front[1])
  oldest, oldest_units = read_element(front[2], base, start)
  newest, stored = oldest, oldest_units
  if front[3] then
    newest, stored = read_element(try('LINDEX', key, '-1'), base, start)
  end
  if newest > now then
    break
  elseif newest + window <= now then
    gone = stored
  elseif oldest + window <= now then
    gone = oldest_units
    oldest, oldest_units = read_element(front[3], base, start)
    if oldest + window <= now then
      break
    end
  end
end
used, problem_of = stored - gone, front.err
local over = used + cost - quota
if problem_of then
  break
elseif over > 0 or not charges then
  if over > oldest_units - gone then
    break
  end
  fits = over <= 0
  frees_in, fresh_in = fits and 0 or oldest + window - now, used > 0 and newest + window - now or 0
else
--> log_charge
end
--}
until true

repeat
--{ log_charge
local fresh_at, was_fresh_at = now + window, front[2] and newest + window or 0
local expires, expired = fresh_at - fresh_at % unit + unit, was_fresh_at - was_fresh_at % unit + unit
if log_limit.is_indexed and (used == 0 or expires ~= expired) then
  break
end
local total = (start + stored + cost) % TOTALS
local reply
if used == 0 then
  reply = front[2] and try('DEL', key)
  reply = type(reply) == 'table' and reply or try('RPUSH', key, pack('<I7I3', now, 0), pack_element(now, cost))
else
  if gone > 0 then
    reply = try('LTRIM', key, '2', '-1')
    if reply.ok then
      try('LPUSH', key, pack('<I7I3', now, (start + gone) % TOTALS))
    end
  end
  reply = reply and reply.err and reply or try('RPUSH', key, pack_element(now, total))
end
problem_of = type(reply) == 'table' and reply.err
if problem_of then
  break
elseif expires ~= expired or used == 0 then
  if expires ~= log_expires then
--> text_of
    log_expires, log_expires_text = expires, text_of(expires)
  end
  try('PEXPIREAT', key, log_expires_text)
end
fits, used, frees_in, fresh_in = true, used + cost, 0, window
--}
until true

--{ log_elements
-- Sets what reads and makes the elements of a list.
if not read_element then
  -- When a charge was, and how many units there are up to it since the header.
  read_element = function(packed, base, start)
    local time, total = unpack('<I6I2', packed)
    if time >= TIMES then
      time, total = time - TIMES, total + 65536
    end
    local half = TIMES / 2
    return base + (time - base + half) % TIMES - half, (total - start) % TOTALS
  end

  -- Of a total below TOTALS.
  pack_element = function(time, total)
    local low = total % 65536
    return pack('<I6I2', time % TIMES + (total - low) / 65536 * TIMES, low)
  end
end
--}

--{ log
-- Sets log, by which both ways decide; made where a call needs it.
log = log or (function()
--> text_of
--> log_elements
--> log_index
--> log_state
--> log_writes
--> log_functions
end)()
--}

--{ log_state
local function pack_header(log)
  return pack('<I7I3', log.base, log.start)
end

-- A charge: where it stands in the list, if that is known; when it was; how many units there are up to it since the header.
local function pack_charge(log, charge)
  return pack_element(charge.time, (log.start + charge.units) % TOTALS)
end

local function read_charge(log, packed, index)
  local time, units = read_element(packed, log.base, log.start)
  return { index = index, time = time, units = units }
end

local function charge_at(log, index)
  return read_charge(log, call('LINDEX', log.key, index), index)
end

local function last_of(log)
  local last = log.last
  last.index = last.index or call('LLEN', log.key) - 1
  return last
end

-- Of neighbours between two charges, those two included, the last whose field is at most bound, and the first whose field is
-- above; so low's is and high's is. Goes where the charge would be if they were even, and to the middle, in turns.
local function around(log, field, bound, low, high)
  local halve = false
  while high.index - low.index > 1 do
    local part = halve and 0.5 or (bound - low[field]) / (high[field] - low[field])
    local index = low.index + 1 + floor(part * (high.index - low.index))
    local charge = charge_at(log, math.min(index, high.index - 1))
    if charge[field] > bound then
      high = charge
    else
      low = charge
    end
    halve = not halve
  end
  return low, high
end

local function expiry(time, limit)
  local fresh_at, unit = time + limit.window, limit.unit
  return fresh_at - fresh_at % unit + unit
end

-- Of units: those that count, those of them that are not written yet, those that the list has, those of it that are gone.
-- From oldest on, charges count; from ahead on, they lie ahead of now, and are read as of now.
local function empty(key)
  return { key = key, used = 0, pending = 0, stored = 0, gone = 0 }
end

local function read(limit)
  local window = limit.window
  local front = call('LRANGE', limit.log, '0', '1')
  if not front[2] then
    return empty(limit.log)
  end
  local base, start = unpack('<I7I3', front[1])
  local log = { key = limit.log, base = base, start = start, pending = 0, gone = 0 }
  local oldest, last = read_charge(log, front[2], 1), read_charge(log, call('LINDEX', log.key, '-1'))
  local newest = last.time
  log.oldest, log.last, log.stored, log.newest, log.expires = oldest, last, last.units, newest, expiry(newest, limit)
  if newest > now then
    log.newest, log.ahead = now, oldest
    if oldest.time <= now then
      local _
      _, log.ahead = around(log, 'time', now, oldest, last_of(log))
    end
  end
  if newest + window <= now then
    log.gone = log.stored
  elseif oldest.time + window <= now then
    local left
    left, log.oldest = around(log, 'time', now - window, oldest, last_of(log))
    log.gone = left.units
  end
  log.used = log.stored - log.gone
  return log
end
--}

--{ log_writes
-- Adds a charge up to which the list has all the units that count.
local function push(log, time)
  log.stored, log.newest, log.last = log.used, time, { time = time, units = log.used }
  log.last.index = call('RPUSH', log.key, pack_charge(log, log.last)) - 1
end

-- The list anew, with one charge, now, of so many units.
local function begin(log, units)
  if log.expires then
    call('DEL', log.key)
  end
  log.base, log.start, log.stored, log.gone, log.ahead, log.expires = now, 0, units, 0, nil, nil
  log.oldest = { index = 1, time = now, units = units }
  log.last = log.oldest
  call('RPUSH', log.key, pack_header(log), pack_charge(log, log.last))
end

-- Writes charges that lie ahead as one of now, if there are any.
local function clamp(log)
  if log.ahead and log.ahead.index == 1 then
    begin(log, log.stored)
  elseif log.ahead then
    call('LTRIM', log.key, '0', log.ahead.index - 1)
    log.last = { index = log.ahead.index, time = now, units = log.stored }
    call('RPUSH', log.key, pack_charge(log, log.last))
    if log.oldest.index == log.last.index then
      log.oldest = log.last
    end
    log.ahead = nil
  end
end

-- Drops charges that no longer count; some do.
local function trim(log)
  local oldest = log.oldest
  if oldest.index == 1 then
    return
  end
  call('LTRIM', log.key, oldest.index, '-1')
  log.base, log.start = now, (log.start + log.gone) % TOTALS
  log.last = { index = last_of(log).index - oldest.index + 1, time = log.last.time, units = log.stored - log.gone }
  log.oldest = { index = 1, time = oldest.time, units = oldest.units - log.gone }
  log.stored, log.gone = log.last.units, 0
  call('LPUSH', log.key, pack_header(log))
end
--}

--{ log_functions
-- What was found or made of a log, by its key.
local logs_read = {}
local log = {}

function log.view(limit)
  local state = logs_read[limit.log]
  if not state then
    state = read(limit)
    logs_read[limit.log] = state
  end
  return state
end

-- Written by save, so that what one call charges is one element.
function log.charge(state, cost)
  state.used, state.pending, state.newest = state.used + cost, state.pending + cost, now
end

-- Lists the log, if it has to be, before it is saved with its newest charge at that time. Where this fails, nothing is written.
function log.list(limit, state, newest)
  if limit.index then
    local expires = expiry(newest, limit)
    if expires ~= state.expires and expires ~= state.listed then
      list_log(limit, expires, not state.expires)
      state.listed = expires
    end
  end
end

function log.save(limit, state)
  log.list(limit, state, state.newest)
  if state.pending > 0 and state.pending == state.used then
    begin(state, state.used)
  else
    clamp(state)
    if state.pending > 0 then
      trim(state)
      push(state, now)
    end
  end
  state.pending, state.asked = 0, nil
  local expires = expiry(state.newest, limit)
  if expires ~= state.expires then
    call('PEXPIREAT', state.key, text_of(expires))
    state.expires = expires
  end
end

-- Takes the newest units back, and saves what is left.
function log.refund(limit, state, cost)
  if state.used == 0 then
    return
  elseif state.used <= cost then
    call('DEL', state.key)
    if limit.index then
      list_log(limit)
    end
    logs_read[state.key] = empty(state.key)
    return
  end
  clamp(state)
  trim(state)
  state.used = state.used - cost
  local kept, taken = around(state, 'units', state.used, { index = 0, units = 0 }, last_of(state))
  call('LTRIM', state.key, '0', kept.index)
  state.last, state.stored, state.newest = kept, kept.units, kept.time
  if kept.units < state.used then
    push(state, taken.time)
  end
  if kept.index == 0 then
    state.oldest = state.last
  end
  log.save(limit, state)
end

-- When the units were taken that have to leave so that so many have.
local function taken_at(state, units)
  units = units + state.gone
  if units > state.stored then
    return now
  elseif state.asked ~= units then
    local charge = state.oldest
    if charge.units < units then
      local _
      _, charge = around(state, 'units', units - 1, charge, last_of(state))
    end
    state.asked, state.answer = units, math.min(charge.time, now)
  end
  return state.answer
end

function log.reading(limit, state, cost, charged)
  local frees_in = 0
  local units = state.used + cost - limit.quota
  if units > 0 and not charged then
    frees_in = taken_at(state, units) + limit.window - now
  end
  local fresh_in = state.used > 0 and state.newest + limit.window - now or 0
  return state.used, frees_in, fresh_in
end

-- Decides requests of one log, one after another. Returns the index of their last number.
function log.decide(limit, request_at, count)
  local state, last_number, dirty = log.view(limit), filled, false
  for _ = 1, count do
    if count > 1 then
      local _
      _, mode, cost, request_at = unpack('<BBI5', request, request_at)
      if mode > 1 then
        error('tollgate: a request has an unknown mode', 0)
      end
    end
    local fits = state.used + cost <= limit.quota
    local charged = fits and mode == 1
    if charged then
      log.charge(state, cost)
    end
    dirty = dirty or charged or mode == 1 and state.ahead ~= nil
    numbers[last_number + 1] = fits and 49 or 48
    numbers[last_number + 2], numbers[last_number + 3], numbers[last_number + 4] = log.reading(limit, state, cost, charged)
    last_number = last_number + 4
  end
  if dirty then
    log.save(limit, state)
  end
  return last_number
end

return log
--}
