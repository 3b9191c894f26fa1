-- sliding_window: at most limit.quota in any window, in bounded memory. Twin of src/algorithm/sliding_window.rs.
-- Payload: total I6 (units in all runs), n B (runs, at most limit.precision + 1), then n runs of at I7, units I5, oldest first,
-- times rising strictly. State: the runs that still count as they are packed, and their units.
-- Reading: used, frees_in, fresh_in.
local function sliding_window()
  local rule = { numbers = 'I7I7I7' }
  local RUN = 12

  function rule.size(value, at)
    local n = byte(value, at + 6)
    return n and 7 + RUN * n
  end

  local function newest_of(runs)
    return unpack('<I7I5', runs, #runs - RUN + 1)
  end

  function rule.fresh_at(value, at, window)
    return unpack('<I7', value, at + 7 + RUN * (byte(value, at + 6) - 1)) + window
  end

  -- Runs with those that lie ahead moved to now.
  local function clamp(runs)
    local moved = 0
    while #runs > 0 do
      local taken, units = newest_of(runs)
      if taken < now then
        break
      end
      moved = moved + units
      runs = sub(runs, 1, #runs - RUN)
    end
    return runs .. pack('<I7I5', now, moved)
  end

  function rule.view(value, at, limit)
    if not value then
      return '', 0, 0, false
    end
    local used, n = unpack('<I6B', value, at)
    local first, last = at + 7, at + 6 + RUN * n
    while first < last do
      local taken, units = unpack('<I7I5', value, first)
      if taken + limit.window > now then
        break
      end
      used = used - units
      first = first + RUN
    end
    local runs = sub(value, first, last)
    local newest = unpack('<I7', value, last - RUN + 1)
    if newest > now then
      return clamp(runs), used, 0, true, newest + limit.window
    end
    return runs, used, 0, false, newest + limit.window
  end

  function rule.fits(limit, _, used, _, cost)
    return used + cost <= limit.quota
  end

  local function same_cell(a, b, cell)
    return floor(a / cell) == floor(b / cell)
  end

  -- Merges neighbours that lie in one cell, each pair at the later one's time: the two newest if they do, else all.
  local function merge(runs, cell)
    local head = sub(runs, 1, #runs - RUN)
    local older, before = newest_of(head)
    local newest, units = newest_of(runs)
    if same_cell(older, newest, cell) then
      return sub(head, 1, #head - RUN) .. pack('<I7I5', newest, before + units)
    end
    local merged, last = {}, nil
    for at = 1, #runs, RUN do
      local taken, more = unpack('<I7I5', runs, at)
      if last and same_cell(last, taken, cell) then
        more = more + units
      elseif last then
        merged[#merged + 1] = pack('<I7I5', last, units)
      end
      last, units = taken, more
    end
    merged[#merged + 1] = pack('<I7I5', last, units)
    return table.concat(merged)
  end

  function rule.charge(limit, runs, used, _, cost)
    local cell, units, most = limit.cell, cost, RUN * limit.precision
    if #runs > 0 then
      local newest, before = newest_of(runs)
      local full = #runs >= most
      if newest == now or (full and same_cell(newest, now, cell)) then
        -- As if it were appended and then merged, which is the common case under load.
        units = units + before
        runs = sub(runs, 1, #runs - RUN)
        if full and newest < now then
          most = #runs + RUN
        end
      end
    end
    runs = runs .. pack('<I7I5', now, units)
    return #runs > most and merge(runs, cell) or runs, used + cost, 0
  end

  function rule.save(limit, runs, used)
    return pack('<I6B', used, #runs / RUN) .. runs, newest_of(runs) + limit.window
  end

  local function frees_in(limit, runs, used, cost)
    local units = used + cost - limit.quota
    if units <= 0 then
      return 0
    end
    for at = 1, #runs, RUN do
      local taken, more = unpack('<I7I5', runs, at)
      units = units - more
      if units <= 0 then
        return taken + limit.window - now
      end
    end
    return 0
  end

  function rule.reading(limit, runs, used, _, cost, charged)
    local fresh_in = used > 0 and newest_of(runs) + limit.window - now or 0
    return used, charged and 0 or frees_in(limit, runs, used, cost), fresh_in
  end

  return rule
end
