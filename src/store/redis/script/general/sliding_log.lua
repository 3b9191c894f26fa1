-- sliding_log: at most limit.quota in any window, every unit at its own time. Twin of src/algorithm/sliding_log.rs.
-- Kept in a LIST of its own (limit.log), an element per unit, the microsecond it was taken at, oldest first.
-- State: what view found, as a table. Reading: used, frees_in, fresh_in.
-- Every loop is bounded by the logarithm of the list's length or by its length in chunks.
local function sliding_log()
  local rule = { numbers = 'I7I7I7' }
  -- Lua's unpack takes a little under 8,000 values.
  local CHUNK = 4096

  local function element(log, index)
    return tonumber(call('LINDEX', log.key, index))
  end

  -- The first index whose element is above bound; the list's length when none is. Elements rise.
  local function first_above(log, bound)
    local low, high = 0, log.length
    while low < high do
      local middle = floor((low + high) / 2)
      if element(log, middle) > bound then
        high = middle
      else
        low = middle + 1
      end
    end
    return low
  end

  -- Elements from log.ahead on lie ahead of now and are read as of now; those before log.live no longer count.
  function rule.view(_, _, limit)
    local log = { key = limit.log, length = call('LLEN', limit.log), live = 0, newest = -1 }
    local clamped = false
    log.ahead = log.length
    if log.length > 0 then
      log.newest = element(log, -1)
      if log.newest > now then
        log.ahead, log.newest, clamped = first_above(log, now), now, true
      end
      if element(log, 0) + limit.window <= now then
        log.live = first_above(log, now - limit.window)
      end
    end
    log.used = log.length - log.live
    return log, 0, 0, clamped
  end

  function rule.fits(limit, log, _, _, cost)
    return log.used + cost <= limit.quota
  end

  local function push(log, units)
    local time = string.format('%.0f', now)
    local times = {}
    for index = 1, math.min(units, CHUNK) do
      times[index] = time
    end
    while units > 0 do
      call('RPUSH', log.key, table_unpack(times, 1, math.min(units, CHUNK)))
      units = units - CHUNK
    end
    log.newest = now
  end

  -- Writes the clamp, if there is one to write.
  local function settle(log)
    local moved = log.length - log.ahead
    if moved == 0 then
      return
    elseif log.ahead == 0 then
      call('DEL', log.key)
    else
      call('LTRIM', log.key, 0, log.ahead - 1)
    end
    push(log, moved)
    log.ahead = log.length
  end

  function rule.charge(_, log, _, _, cost)
    settle(log)
    if log.live > 0 then
      call('LTRIM', log.key, log.live, -1)
    end
    push(log, cost)
    log.used = log.used + cost
    log.length, log.live, log.ahead = log.used, 0, log.used
    return log, 0, 0
  end

  function rule.save(limit, log)
    settle(log)
    call('PEXPIREAT', log.key, text_of(expiry(log.newest + limit.window, limit.unit)))
  end

  function rule.reading(limit, log, _, _, cost, charged)
    local frees_in = 0
    local units = log.used + cost - limit.quota
    if units > 0 and not charged then
      frees_in = math.min(element(log, log.live + units - 1), now) + limit.window - now
    end
    local fresh_in = log.used > 0 and log.newest + limit.window - now or 0
    return log.used, frees_in, fresh_in
  end

  return rule
end
