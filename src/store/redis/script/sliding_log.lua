-- sliding_log: at most limit.quota in any window, every unit at its own time. Twin of src/algorithm/sliding_log.rs.
-- State: a LIST of its own (limit.key), an element per unit, the microsecond it was taken at, oldest first.
-- Reading: used, frees_in, fresh_in. Every loop is bounded by the logarithm of the list's length or by its length in chunks.
local function sliding_log()
  local self = { own_key = true }
  -- Lua's unpack takes a little under 8,000 values.
  local CHUNK = 4096

  local function element(state, index)
    return tonumber(redis.call('LINDEX', state.key, index))
  end

  -- The first index from low on whose element is above bound; the list's length when none is. Elements rise.
  local function first_above(state, low, bound)
    local high = state.length
    while low < high do
      local middle = math.floor((low + high) / 2)
      if element(state, middle) > bound then
        high = middle
      else
        low = middle + 1
      end
    end
    return low
  end

  -- Elements from state.ahead on lie ahead of now and are read as of now; those before state.live no longer count.
  function self.view(limit)
    local state = { key = limit.key, length = redis.call('LLEN', limit.key), live = 0, newest = -1 }
    state.ahead = state.length
    if state.length > 0 then
      local newest = element(state, -1)
      if newest > now then
        state.ahead = first_above(state, 0, now)
        state.clamped = true
      end
      state.newest = math.min(newest, now)
      if element(state, 0) + limit.window <= now then
        state.live = first_above(state, 0, now - limit.window)
      end
    end
    state.used = state.length - state.live
    return state
  end

  function self.fits(state, limit, cost)
    return state.used + cost <= limit.quota
  end

  local function push(state, units)
    local stamp = string.format('%.0f', now)
    local stamps = {}
    for index = 1, math.min(units, CHUNK) do
      stamps[index] = stamp
    end
    while units > 0 do
      redis.call('RPUSH', state.key, unpack(stamps, 1, math.min(units, CHUNK)))
      units = units - CHUNK
    end
    state.newest = now
  end

  local function clamp(state)
    local units = state.length - state.ahead
    if state.ahead == 0 then
      redis.call('DEL', state.key)
    else
      redis.call('LTRIM', state.key, 0, state.ahead - 1)
    end
    push(state, units)
  end

  function self.charge(state, limit, cost)
    if state.clamped then
      clamp(state)
    end
    if state.live > 0 then
      redis.call('LTRIM', state.key, state.live, -1)
    end
    push(state, cost)
    state.length, state.live, state.used = state.used + cost, 0, state.used + cost
    state.ahead, state.clamped = state.length, false
  end

  function self.save(state, limit)
    if state.clamped then
      clamp(state)
    end
    redis.call('PEXPIREAT', state.key, expiry(state.newest + limit.window))
  end

  function self.reading(state, limit, cost, charged)
    local frees_in = 0
    local units = state.used + cost - limit.quota
    if units > 0 and not charged then
      frees_in = math.min(element(state, state.live + units - 1), now) + limit.window - now
    end
    local fresh_in = state.used > 0 and state.newest + limit.window - now or 0
    return state.used, frees_in, fresh_in
  end

  return self
end
