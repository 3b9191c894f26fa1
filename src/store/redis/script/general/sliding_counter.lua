-- sliding_counter: an estimate from two clock-aligned windows. Twin of src/algorithm/sliding_counter.rs.
-- Payload: a stamp, when the window began, whose tag says in how many bytes each of current and previous follows.
-- State: start, current, previous. Reading: current, previous, elapsed.
-- Products stay below 2^53: the config refuses a quota * window above it.
local function sliding_counter()
  local rule = { numbers = 'I7I7I7' }
  local SAVED = { '<I6BI1I1', '<I6BI2I2', '<I6BI3I3', '<I6BI4I4', '<I6BI5I5' }

  function rule.size(value, at)
    local top = byte(value, at + 6)
    return top and 7 + 2 * floor(top / 32)
  end

  local function load(value, at)
    local start, width = read_stamp(unpack('<I6B', value, at))
    local current, previous = unpack('<I' .. width .. 'I' .. width, value, at + 7)
    return start, current, previous
  end

  function rule.fresh_at(value, at, window)
    return load(value, at) + 2 * window
  end

  -- The counts as they stand in the present window. One that lies ahead is clamped: it begins now, and those after it
  -- follow it until the key is fresh again.
  function rule.view(value, at, limit)
    local window, fresh_at = limit.window, nil
    if value then
      local start, current, previous = load(value, at)
      fresh_at = start + 2 * window
      if start > now then
        return now, current, previous, true, fresh_at
      elseif now < start + window then
        return start, current, previous, false, fresh_at
      elseif now < fresh_at then
        return start + window, 0, current, false, fresh_at
      end
    end
    return now - now % window, 0, 0, false, fresh_at
  end

  function rule.fits(limit, start, current, previous, cost)
    local window = limit.window
    return (current + cost) * window + previous * (window - (now - start)) <= limit.quota * window
  end

  function rule.charge(_, start, current, previous, cost)
    return start, current + cost, previous
  end

  function rule.save(limit, start, current, previous)
    local width = bytes_of(math.max(current, previous))
    local low, top = stamp(start, width)
    return pack(SAVED[width], low, top, current, previous), start + 2 * limit.window
  end

  function rule.reading(_, start, current, previous)
    return current, previous, now - start
  end

  return rule
end
