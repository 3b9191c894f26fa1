-- token_bucket, by GCRA. Twin of src/algorithm/gcra.rs, whose head explains tat, emission interval and tolerance.
-- Payload: tat I7 (microseconds), at I7 (when that was written). Reading: backlog, 0, 0.
local function gcra()
  local self = {}

  function self.size()
    return 14
  end

  function self.fresh_at(value, at)
    return (struct.unpack('<I7', value, at))
  end

  -- At a time before the last write the clock stepped back: the debt is what it was then.
  function self.view(value, at)
    if not at then
      return { backlog = 0 }
    end
    local tat, written = struct.unpack('<I7I7', value, at)
    return { backlog = math.max(tat - math.max(now, written), 0), clamped = written > now }
  end

  function self.fits(state, limit, cost)
    return state.backlog + cost * limit.emission <= limit.tolerance
  end

  function self.charge(state, limit, cost)
    state.backlog = state.backlog + cost * limit.emission
  end

  function self.save(state)
    local tat = now + state.backlog
    return struct.pack('<I7I7', tat, now), tat
  end

  function self.reading(state)
    return state.backlog, 0, 0
  end

  return self
end
