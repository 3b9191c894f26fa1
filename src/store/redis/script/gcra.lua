-- token_bucket, by GCRA. Twin of src/algorithm/gcra.rs, whose head explains tat, emission interval and tolerance.
-- Payload: tat I7 (microseconds). Reading: backlog, 0, 0.
local function gcra()
  local self = {}

  function self.size()
    return 7
  end

  function self.fresh_at(value, at)
    return (struct.unpack('<I7', value, at))
  end

  -- A debt above the largest that is believed means that the clock stepped back.
  function self.view(value, at, limit)
    if not at then
      return { backlog = 0 }
    end
    local backlog = struct.unpack('<I7', value, at) - now
    local most = math.max(limit.tolerance, limit.window)
    if backlog > most then
      return { backlog = most, clamped = true }
    end
    return { backlog = math.max(backlog, 0) }
  end

  function self.fits(state, limit, cost)
    return state.backlog + cost * limit.emission <= limit.tolerance
  end

  function self.charge(state, limit, cost)
    state.backlog = state.backlog + cost * limit.emission
  end

  function self.save(state)
    local tat = now + state.backlog
    return struct.pack('<I7', tat), tat
  end

  function self.reading(state)
    return state.backlog, 0, 0
  end

  return self
end
