-- fixed_window: at most limit.quota per window. Twin of src/algorithm/fixed_window.rs.
-- Payload: start I7 (microseconds), count I5. Reading: count, ends_in, 0.
local function fixed_window(anchored)
  local self = {}

  function self.size()
    return 12
  end

  function self.fresh_at(value, at, window)
    return struct.unpack('<I7', value, at) + window
  end

  -- The window that now lies in; one that lies ahead is clamped: its count moves to the present one.
  function self.view(value, at, limit)
    local window = limit.window
    local present = anchored and now or now - now % window
    if not at then
      return { start = present, count = 0 }
    end
    local start, count = struct.unpack('<I7I5', value, at)
    if count == 0 or start + window <= now then
      return { start = present, count = 0 }
    elseif start > now then
      return { start = present, count = count, clamped = true }
    end
    return { start = start, count = count }
  end

  function self.fits(state, limit, cost)
    return state.count + cost <= limit.quota
  end

  function self.charge(state, limit, cost)
    state.count = state.count + cost
  end

  function self.save(state, limit)
    return struct.pack('<I7I5', state.start, state.count), state.start + limit.window
  end

  function self.reading(state, limit)
    return state.count, state.start + limit.window - now, 0
  end

  return self
end
