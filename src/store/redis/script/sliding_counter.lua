-- sliding_counter: an estimate from two clock-aligned windows. Twin of src/algorithm/sliding_counter.rs.
-- Payload: start I7 (microseconds), current I5, previous I5. Reading: current, previous, elapsed.
-- Products stay below 2^53: the config refuses a quota * window above it.
local function sliding_counter()
  local self = {}

  function self.size()
    return 17
  end

  function self.fresh_at(value, at, window)
    return struct.unpack('<I7', value, at) + 2 * window
  end

  -- The counts as they stand in the present window. One that lies ahead is clamped: it begins now, and those after it
  -- follow it until the key is fresh again.
  function self.view(value, at, limit)
    local window = limit.window
    if at then
      local start, current, previous = struct.unpack('<I7I5I5', value, at)
      if start > now then
        return { start = now, current = current, previous = previous, clamped = true }
      elseif now < start + window then
        return { start = start, current = current, previous = previous }
      elseif now < start + 2 * window then
        return { start = start + window, current = 0, previous = current }
      end
    end
    return { start = now - now % window, current = 0, previous = 0 }
  end

  function self.fits(state, limit, cost)
    local window = limit.window
    local weighed = state.previous * (window - (now - state.start))
    return (state.current + cost) * window + weighed <= limit.quota * window
  end

  function self.charge(state, limit, cost)
    state.current = state.current + cost
  end

  function self.save(state, limit)
    return struct.pack('<I7I5I5', state.start, state.current, state.previous), state.start + 2 * limit.window
  end

  function self.reading(state)
    return state.current, state.previous, now - state.start
  end

  return self
end
