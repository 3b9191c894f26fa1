-- sliding_log: at most quota in any window, every unit at its own time. Twin of src/core/algorithm/sliding_log.rs.
-- Kept in a LIST of its own: a header, then an element per charge, oldest first, whatever the charge's units are.
--   header   a time I7, which is never more than a window away from any charge's, and a total I3: units up to the first charge
--   charge   I6I2: 47 bits of its time, in microseconds, and 17 bits of the total of units up to it, itself included; the
--            total's top bit is the I6's top bit
-- Reading: used, frees_in, fresh_in.
-- What was read or written stands for the rest of the call. A search looks at 3 + log2(n) of n elements at most, and at one or
-- two where charges are even; a write adds at most three elements.
-- log_writes.lua has the order of the writes, of which Redis may refuse any.

-- The rule is written twice, as that of a token_bucket is: what most calls find needs no search and no table, and costs half as
-- much. That is one request for a log of which nothing, a few charges or everything is gone, and nothing lies ahead.

repeat
--{ log_decide
local front = try('LRANGE', key, '0', '2')
local head, first = front[1], front[2]
-- `oldest_at` is where in the list the oldest charge that counts is.
local base, start, oldest, oldest_units, newest, stored, gone, oldest_at = now, 0, now, 0, now, 0, 0, 1
if head then
  -- By their lengths, logs are told from other lists. The general way tells what is wrong.
  if not first or #head ~= 10 or #first ~= 8 then
    break
  end
  base, start = unpack('<I7I3', head)
  oldest, oldest_units = read_element(first, base, start)
  newest, stored = oldest, oldest_units
  if front[3] then
    local last = try('LINDEX', key, '-1')
    if #last ~= 8 then
      break
    end
    newest, stored = read_element(last, base, start)
  end
  if newest > now then
    break
  elseif newest + window <= now then
    gone = stored
  elseif oldest + window <= now then
    local elements, next_index = front, 3
    while oldest + window <= now do
      if elements == front and not elements[next_index] then
        elements, next_index = try('LRANGE', key, '3', '12'), 1
      end
      local element = elements[next_index]
      if not element or #element ~= 8 then
        break
      end
      gone, oldest_at, next_index = oldest_units, oldest_at + 1, next_index + 1
      oldest, oldest_units = read_element(element, base, start)
    end
    if oldest + window <= now or gone > stored then
      break
    end
  end
else
  problem_of = front.err
end
used = stored - gone
local over = used + cost - quota
if problem_of or (over > 0 or not charges) and over > oldest_units - gone then
  break
end
fits = over <= 0
--}

--{ log_numbers
-- The numbers of a request that `log_decide` decided, where it is not charged.
frees_in, fresh_in = over > 0 and oldest + window - now or 0, used > 0 and newest + window - now or 0
--}
until true

repeat
--{ log_charge
-- Charges what `log_decide` found to fit. Where it leaves that to the general way, `fits` is nil.
local fresh_at, was_fresh_at, reply = now + window, head and newest + window or 0, nil
local expires, expired = fresh_at - fresh_at % unit + unit, was_fresh_at - was_fresh_at % unit + unit
if expires ~= expired then
  if prefix then
    -- The index of logs comes first.
    fits = nil
    break
  elseif expires ~= log_expires then
--> text_of
    log_expires, log_expires_text = expires, text_of(expires)
  end
  if head then
    reply = try('PEXPIREAT', key, log_expires_text)
    problem_of = type(reply) == 'table' and reply.err
  end
end
if problem_of then
  break
elseif used > 0 then
  if gone > 0 then
    reply = try('LTRIM', key, oldest_at == 2 and '2' or format('%d', oldest_at), '-1')
    if reply.ok then
      local header = pack('<I7I3', now, (start + gone) % TOTALS)
--> put_header
    end
    problem_of = type(reply) == 'table' and reply.err
    if problem_of then
      break
    end
  end
  reply = try('RPUSH', key, pack_element(now, (start + stored + cost) % TOTALS))
else
  reply = try('RPUSH', key, pack('<I7I3', now, 0), pack_element(now, cost))
  if type(reply) ~= 'table' then
    reply = head and try('LTRIM', key, '-2', '-1') or try('PEXPIREAT', key, log_expires_text)
    if type(reply) == 'table' and reply.err then
      -- It held nothing that counts.
      try('DEL', key)
    end
  end
end
problem_of = type(reply) == 'table' and reply.err
if problem_of then
  break
end
used, frees_in, fresh_in = used + cost, 0, window
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
-- Maximum number of charges between two others that are read by one command.
local READ_TOGETHER = 32

local function pack_header(log)
  return pack('<I7I3', log.base, log.start)
end

-- A charge: where it stands in the list, if that is known; when it was; how many units there are up to it since the header.
local function pack_charge(log, charge)
  return pack_element(charge.time, (log.start + charge.units) % TOTALS)
end

local function read_charge(log, packed, index)
  if not packed or #packed ~= 8 then
    error('tollgate: a log that cannot be read', 0)
  end
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
-- above; so low's is and high's is. Goes where the charge would be if they were even, three times, and then to the middle. The
-- last few are read by one command, since most of the time of a search is that of its commands.
local function around(log, field, bound, low, high)
  local guesses, read, read_from = 3, nil, nil
  while high.index - low.index > 1 do
    if not read and high.index - low.index <= READ_TOGETHER then
      read, read_from = call('LRANGE', log.key, low.index + 1, high.index - 1), low.index
    end
    local part = guesses > 0 and (bound - low[field]) / (high[field] - low[field]) or 0.5
    local index = math.min(low.index + 1 + floor(part * (high.index - low.index)), high.index - 1)
    local charge = read and read_charge(log, read[index - read_from], index) or charge_at(log, index)
    if charge[field] > bound then
      high = charge
    else
      low = charge
    end
    guesses = guesses - 1
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
  if not front[1] then
    return empty(limit.log)
  elseif #front[1] ~= 10 then
    error('tollgate: a log that cannot be read', 0)
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
  if log.used < 0 then
    error('tollgate: a log that cannot be read', 0)
  end
  return log
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

-- Written by log.write, so that what one call charges is one element.
function log.charge(state, cost)
  state.used, state.pending, state.newest = state.used + cost, state.pending + cost, now
end

-- Whether all units that count are yet to be written.
local function begins(state)
  return state.pending > 0 and state.pending == state.used
end

-- Writes all that comes before the charges: the index, the expiry, a clamp, the front of the list. Where this fails, what counts is
-- as it was.
function log.prepare(limit, state)
  local expires = expiry(state.newest, limit)
  if expires ~= state.expires then
    if limit.index then
      list_log(limit, expires, not state.expires)
    end
    if state.expires then
      call('PEXPIREAT', state.key, text_of(expires))
      state.expires = expires
    end
  end
  if not begins(state) then
    clamp(state, expires)
    if state.pending > 0 then
      trim(state)
    end
  end
  state.asked = nil
end

-- Writes what was charged to one log.
local function write_log(limit, state)
  if begins(state) then
    begin(state, state.used, expiry(now, limit))
  elseif state.pending > 0 then
    push(state, now)
  end
  state.pending = 0
end

-- Writes what was charged to the logs among these states, all of it or nothing. Logs that begin come first: Redis may refuse to
-- make a key, and they held nothing that counts, so that deleting them undoes it. The others are then written by the same command.
function log.write(states)
  local begun = {}
  for _, state in ipairs(states) do
    if state.log and begins(state.log) then
      local written, why = pcall(write_log, state.limit, state.log)
      if not written then
        for _, key in ipairs(begun) do
          try('DEL', key)
        end
        error(why, 0)
      end
      begun[#begun + 1] = state.log.key
    end
  end
  for _, state in ipairs(states) do
    if state.log then
      write_log(state.limit, state.log)
    end
  end
end

-- Finds what log.refund will take, if it leaves any: where the newest units begin, or for an undo, where the charges of its instant
-- do. It may find that the log cannot be read.
function log.find(limit, state, cost, instant)
  if instant then
--> log_find_instant
  elseif state.used > cost then
    clamp(state, expiry(now, limit))
    trim(state)
    state.kept, state.taken = around(state, 'units', state.used - cost, { index = 0, units = 0 }, last_of(state))
  end
end

-- Takes the newest units back, which log.find has found. For an undo, those of its instant.
function log.refund(limit, state, cost, instant)
  if instant then
    cost = state.undone and math.min(cost, state.undone.units) or 0
  end
  if instant and cost < state.used then
    if cost > 0 then
--> log_take_back
    end
  elseif state.used > cost then
    local kept = state.kept
    state.used = state.used - cost
    call('LTRIM', state.key, '0', kept.index)
    state.last, state.stored, state.newest = kept, kept.units, kept.time
    if kept.units < state.used then
      push(state, state.taken.time)
    end
    if kept.index == 0 then
      state.oldest = state.last
    end
    -- If it stays later than that, the log only stays for longer.
    state.asked, state.expires = nil, expiry(state.newest, limit)
    try('PEXPIREAT', state.key, text_of(state.expires))
  elseif state.used > 0 then
    -- By the same command as above: of several logs, either the first is refused or none.
    call('LTRIM', state.key, '1', '0')
    if limit.index then
      -- An index may list a log that is gone.
      pcall(list_log, limit)
    end
    logs_read[state.key] = empty(state.key)
  end
end

-- When the units were taken that have to leave so that so many have.
local function taken_at(state, units)
  units = units + state.gone
  -- Of a look: what holds/give_back.lua leaves out, in its order.
  for index = 1, state.left_out and #state.left_out or 0 do
    local part = state.left_out[index]
    units = units > part.ends - part.units and units + part.units or units
  end
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

-- Decides requests of one log, one after another. Returns their replies.
function log.decide(limit, request_at, count)
  local state, last_number, dirty = log.view(limit), 0, false
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
    log.prepare(limit, state)
    write_log(limit, state)
  end
  return pack('<' .. rep('BI7I7I7', count), table_unpack(numbers, 1, last_number))
end

return log
--}
