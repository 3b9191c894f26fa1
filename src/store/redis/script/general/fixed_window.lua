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

  local WHOLE = { '<BI6BI1', '<BI6BI2', '<BI6BI3', '<BI6BI4', '<BI6BI5' }

  function rule.one_charge(limit, value, cost)
    local window, start, count, before = limit.window, nil, 0, nil
    if value then
      local width = #value - 8
      if not WHOLE[width] then
        return nil
      end
      local head, low, top, held = unpack(WHOLE[width], value)
      local began, tag = read_stamp(low, top)
      before = began + window
      if head ~= limit.head or tag ~= width or began > now then
        return nil
      elseif now < before then
        start, count = began, held
      end
    end
    start = start or limit.anchored and now or now - now % window
    local fresh_at, charged = start + window, count + cost
    if charged > limit.quota then
      return pack('<BI7I7', 48, count, fresh_at - now)
    end
    local width = bytes_of(charged)
    local low, top = stamp(start, width)
    return pack('<BI7I7', 49, charged, fresh_at - now), pack(WHOLE[width], limit.head, low, top, charged), fresh_at, before
  end

  return rule
end
