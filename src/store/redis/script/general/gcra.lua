-- token_bucket, by GCRA. Twin of src/algorithm/gcra.rs, whose head explains tat, emission interval and tolerance.
-- Payload: a stamp, the tat; its tag is 1 when the debt was above a window, and the time of the writing follows, I7.
-- State: backlog. Reading: backlog.
local function gcra()
  local rule = { numbers = 'I7' }

  function rule.size(value, at)
    local top = byte(value, at + 6)
    return top and (top >= 32 and 14 or 7)
  end

  local function load(value, at)
    local tat = unpack('<I7', value, at)
    if tat < TAGGED then
      return tat
    end
    tat = read_stamp(unpack('<I6B', value, at))
    return tat, (unpack('<I7', value, at + 7))
  end

  function rule.fresh_at(value, at)
    return (load(value, at))
  end

  -- Where the clock stepped back, the debt is at most what it was when it was written, as far as is known.
  function rule.view(value, at, limit)
    if not value then
      return 0, 0, 0, false
    end
    local tat, written = load(value, at)
    local backlog = tat - now
    if written then
      backlog = tat - math.max(now, written)
    elseif backlog > limit.window then
      backlog = limit.window
    end
    if backlog < 0 then
      backlog = 0
    end
    return backlog, 0, 0, tat > now + backlog, tat
  end

  function rule.fits(limit, backlog, _, _, cost)
    return backlog + cost * limit.emission <= limit.tolerance
  end

  function rule.charge(limit, backlog, _, _, cost)
    return backlog + cost * limit.emission, 0, 0
  end

  function rule.save(limit, backlog)
    local tat = now + backlog
    if backlog > limit.window then
      local low, top = stamp(tat, 1)
      return pack('<I6BI7', low, top, now), tat
    end
    return pack('<I7', tat), tat
  end

  function rule.reading(_, backlog)
    return backlog
  end

  return rule
end
