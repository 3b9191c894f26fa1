-- fixed_window: at most limit.quota per window. Twin of src/algorithm/fixed_window.rs.
-- Payload: a stamp, when the window began, whose tag says in how many bytes the count follows. State: start, count.
-- Reading: count, ends_in.
local function fixed_window()
  local rule = { numbers = 'I7I7' }
  local SAVED = { '<I6BI1', '<I6BI2', '<I6BI3', '<I6BI4', '<I6BI5' }

  function rule.size(value, at)
    local top = byte(value, at + 6)
    return top and 7 + floor(top / 32)
  end

  local function load(value, at)
    local start, width = read_stamp(unpack('<I6B', value, at))
    return start, (unpack('<I' .. width, value, at + 7))
  end

  function rule.fresh_at(value, at, window)
    return load(value, at) + window
  end

  -- The window that now lies in. One that lies ahead is clamped: it begins now and keeps its count for a whole window.
  function rule.view(value, at, limit)
    local fresh_at
    if value then
      local start, count = load(value, at)
      fresh_at = start + limit.window
      if start > now then
        return now, count, 0, true, fresh_at
      elseif now < fresh_at then
        return start, count, 0, false, fresh_at
      end
    end
    return limit.anchored and now or now - now % limit.window, 0, 0, false, fresh_at
  end

  function rule.fits(limit, _, count, _, cost)
    return count + cost <= limit.quota
  end

  function rule.charge(_, start, count, _, cost)
    return start, count + cost, 0
  end

  function rule.save(limit, start, count)
    local width = bytes_of(count)
    local low, top = stamp(start, width)
    return pack(SAVED[width], low, top, count), start + limit.window
  end

  function rule.reading(limit, start, count)
    return count, start + limit.window - now
  end

  return rule
end
