-- sliding_log: at most limit.quota in any window, every unit at its own time. Twin of src/algorithm/sliding_log.rs.
-- Kept in a LIST of its own (limit.log): a header, then an element per charge, oldest first, whatever the charge's units are.
--   header   a time I7, which is never more than a window away from any charge's, and a total I3: units up to the first charge
--   charge   I6I2: 47 bits of its time, in microseconds, and 17 bits of the total of units up to it, itself included; the
--            total's top bit is the I6's top bit
-- State: what view found, as a table. Reading: used, frees_in, fresh_in.
-- What was read or written stands for the rest of the call. A search looks at 2 log2(n) of n elements at most, and at one or
-- two where charges are even; a write adds at most three elements.
local function sliding_log()
  local rule = { numbers = 'I7I7I7' }
  -- Times are kept modulo this, 4.4 years. The header's time tells which multiple is meant, whatever the clock has done since.
  local TIMES = 140737488355328 -- 2^47
  -- Totals are kept modulo this: a list never holds more units than the largest quota of a sliding_log, 100,000.
  local TOTALS = 131072 -- 2^17
  -- By key.
  local logs = {}

  local function pack_header(log)
    return pack('<I7I3', log.base, log.start)
  end

  -- A charge: where it stands in the list, if that is known; when it was; how many units there are up to it since the header.
  local function pack_charge(log, charge)
    local total = (log.start + charge.units) % TOTALS
    local low = total % 65536
    return pack('<I6I2', charge.time % TIMES + (total - low) / 65536 * TIMES, low)
  end

  local function read_charge(log, packed, index)
    local time, total = unpack('<I6I2', packed)
    if time >= TIMES then
      time, total = time - TIMES, total + 65536
    end
    local half = TIMES / 2
    time = log.base + (time - log.base + half) % TIMES - half
    return { index = index, time = time, units = (total - log.start) % TOTALS }
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

  -- Of units: those that count, those of them that are not written yet, those that the list has, those of it that are gone.
  -- From oldest on, charges count; from ahead on, they lie ahead of now, and are read as of now.
  local function empty(limit)
    return { key = limit.log, used = 0, pending = 0, stored = 0, gone = 0 }
  end

  local function read(limit)
    local log, window = empty(limit), limit.window
    local front = call('LRANGE', log.key, 0, 1)
    if not front[2] then
      return log
    end
    log.base, log.start = unpack('<I7I3', front[1])
    log.oldest, log.last = read_charge(log, front[2], 1), read_charge(log, call('LINDEX', log.key, -1))
    local newest = log.last.time
    log.stored, log.newest, log.expires = log.last.units, newest, expiry(newest + window, limit.unit)
    local oldest = log.oldest
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

  function rule.view(_, _, limit)
    local log = logs[limit.log]
    if not log then
      log = read(limit)
      logs[limit.log] = log
    end
    return log, 0, 0, log.ahead ~= nil
  end

  function rule.fits(limit, log, _, _, cost)
    return log.used + cost <= limit.quota
  end

  -- Written by save, so that what one call charges is one element.
  function rule.charge(_, log, _, _, cost)
    log.used, log.pending, log.newest = log.used + cost, log.pending + cost, now
    return log, 0, 0
  end

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

  -- Writes the clamp, if there is one to write.
  local function clamp(log)
    if log.ahead and log.ahead.index == 1 then
      begin(log, log.stored)
    elseif log.ahead then
      call('LTRIM', log.key, 0, log.ahead.index - 1)
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
    call('LTRIM', log.key, oldest.index, -1)
    log.base, log.start = now, (log.start + log.gone) % TOTALS
    log.last = { index = last_of(log).index - oldest.index + 1, time = log.last.time, units = log.stored - log.gone }
    log.oldest = { index = 1, time = oldest.time, units = oldest.units - log.gone }
    log.stored, log.gone = log.last.units, 0
    call('LPUSH', log.key, pack_header(log))
  end

  -- Lists the log, if it has to be, before it is saved with its newest charge at that time. Where this fails, nothing is written.
  function rule.list(limit, log, newest)
    local expires = expiry(newest + limit.window, limit.unit)
    if limit.index and expires ~= log.expires and expires ~= log.listed then
      list_log(limit, expires, not log.expires)
      log.listed = expires
    end
  end

  function rule.save(limit, log)
    rule.list(limit, log, log.newest)
    if log.pending > 0 and log.pending == log.used then
      begin(log, log.used)
    else
      clamp(log)
      if log.pending > 0 then
        trim(log)
        push(log, now)
      end
    end
    log.pending, log.asked = 0, nil
    local expires = expiry(log.newest + limit.window, limit.unit)
    if expires ~= log.expires then
      call('PEXPIREAT', log.key, text_of(expires))
      log.expires = expires
    end
  end

  -- Takes the newest units back, fewer than count. For refunds, which save after it.
  function rule.take_back(log, units)
    clamp(log)
    trim(log)
    log.used = log.used - units
    local kept, taken = around(log, 'units', log.used, { index = 0, units = 0 }, last_of(log))
    call('LTRIM', log.key, 0, kept.index)
    log.last, log.stored, log.newest = kept, kept.units, kept.time
    if kept.units < log.used then
      push(log, taken.time)
    end
    if kept.index == 0 then
      log.oldest = log.last
    end
  end

  -- Takes all units back.
  function rule.drop(limit, log)
    call('DEL', log.key)
    if limit.index then
      list_log(limit)
    end
    logs[log.key] = empty(limit)
  end

  -- When the units were taken that have to leave so that so many have.
  local function taken_at(log, units)
    units = units + log.gone
    if units > log.stored then
      return now
    elseif log.asked ~= units then
      local charge = log.oldest
      if charge.units < units then
        local _
        _, charge = around(log, 'units', units - 1, charge, last_of(log))
      end
      log.asked, log.answer = units, math.min(charge.time, now)
    end
    return log.answer
  end

  function rule.reading(limit, log, _, _, cost, charged)
    local frees_in = 0
    local units = log.used + cost - limit.quota
    if units > 0 and not charged then
      frees_in = taken_at(log, units) + limit.window - now
    end
    local fresh_in = log.used > 0 and log.newest + limit.window - now or 0
    return log.used, frees_in, fresh_in
  end

  return rule
end
