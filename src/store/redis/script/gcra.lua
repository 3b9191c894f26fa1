-- token_bucket, by GCRA. Twin of src/algorithm/gcra.rs, whose head explains tat, emission interval and tolerance.
-- Payload: tat I7 (microseconds); when the debt was above a window, the top bit of its last byte is set and the time of the
-- writing follows, I7. Reading: backlog, 0, 0.
local function gcra()
  local self = {}
  local FLAG = 128
  local TOP_BYTE = 281474976710656 -- 2^48

  function self.size(value, at)
    return string.byte(value, at + 6) >= FLAG and 14 or 7
  end

  local function decode(value, at)
    local tat, top = struct.unpack('<I6B', value, at)
    if top >= FLAG then
      return tat + (top - FLAG) * TOP_BYTE, (struct.unpack('<I7', value, at + 7))
    end
    return tat + top * TOP_BYTE, nil
  end

  function self.fresh_at(value, at)
    return (decode(value, at))
  end

  -- Where the clock stepped back, the debt is at most what it was when it was written, as far as is known.
  function self.view(value, at, limit)
    if not at then
      return { backlog = 0 }
    end
    local tat, written = decode(value, at)
    local backlog
    if written then
      backlog = math.max(tat - math.max(now, written), 0)
    else
      backlog = math.min(math.max(tat - now, 0), limit.window)
    end
    return { backlog = backlog, clamped = tat > now + backlog }
  end

  function self.fits(state, limit, cost)
    return state.backlog + cost * limit.emission <= limit.tolerance
  end

  function self.charge(state, limit, cost)
    state.backlog = state.backlog + cost * limit.emission
  end

  function self.save(state, limit)
    local tat = now + state.backlog
    local top = math.floor(tat / TOP_BYTE)
    if state.backlog > limit.window then
      return struct.pack('<I6BI7', tat - top * TOP_BYTE, top + FLAG, now), tat
    end
    return struct.pack('<I7', tat), tat
  end

  function self.reading(state)
    return state.backlog, 0, 0
  end

  return self
end
