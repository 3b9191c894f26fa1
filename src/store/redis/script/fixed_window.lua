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

  -- The window that now lies in. One that lies ahead is clamped: it begins now and keeps its count for a whole window.
  function self.view(value, at, limit)
    if at then
      local start, count = struct.unpack('<I7I5', value, at)
      if start > now then
        return { start = now, count = count, clamped = true }
      elseif now < start + limit.window then
        return { start = start, count = count }
      end
    end
    return { start = anchored and now or now - now % limit.window, count = 0 }
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
