-- sliding_window: at most quota in any window, in bounded memory. Twin of src/core/algorithm/sliding_window.rs.
-- A run is units that count as taken at one instant: at I7, units I5. The newest run is in the record, those before it are in a
-- ring of slots behind all records of the state. So a charge that joins the newest run reads and writes the record alone.
-- Payload: total I6 (units in all runs), shape I5, when the oldest run was taken I7, the newest run. The shape is 128 + slots of
-- the ring B, n B (runs, at most precision + 1), slot of the oldest run B, offset of the ring in the state I2. The ring always
-- has a free slot behind its last run, so that a run can be written there before it is known whether the record will be.
-- The general way works on payloads that have all in them: total I6, n B, then n runs, oldest first. Redis never has these.
-- Reading: used, frees_in, fresh_in.
--
-- Like token_bucket's, the rule is written twice: most charges need one run of up to 65.

repeat
--{ decide
if kind == SLIDING_WINDOW or kind == SLIDING_WINDOW_OF_PRECISION then
  -- `first` and `ring`, the slot of the oldest run and the offset of the ring, are set where they are needed. If they are, the shape
  -- changes.
  local used, shape, slots, n, oldest, newest, units, first, ring
  if value then
    if #value - from < 30 then
      break
    end
    local head
    head, used, shape, oldest, newest, units = unpack('<BI6I5I7I7I5', value, from)
    slots = shape % 256
    if head ~= limit_head or slots < 128 or slots > 193 or newest > now then
      break
    end
    n, from, before = (shape - slots) / 256 % 256, from + 31, newest + window
    if not several and slots > 128 then
      if shape - shape % 16777216 ~= from * 16777216 then
        -- Records of other limits follow.
        break
      end
      rings, length = true, from + 12 * (slots - 128)
    end
    if oldest + window <= now then
      if before <= now then
        used, n = 0, 0
      else
--> drop_expired
        if not first then
          break
        end
      end
    end
  else
    used, shape, slots, n = 0, 128, 128, 0
  end
  if used + cost > quota or not charges then
    local over, frees_in = used + cost - quota, 0
    if over > 0 then
--> frees_in
      if not frees_in then
        break
      end
    end
    fits = over <= 0
    numbers[last_number + 1] = used
    numbers[last_number + 2] = frees_in
    numbers[last_number + 3] = used > 0 and newest + window - now or 0
  else
--> charge_run
    if not n then
      break
    end
  end
  last_number = last_number + 3
--}
end
until true

--{ charge_run
if n == 0 then
  shape, oldest, units = shape - shape % 16777216 + 256 + slots, now, cost
elseif newest == now or n >= precision and newest >= now - now % step then
  -- The charge joins the newest run, which it makes one of now.
  units = units + cost
  if n == 1 then
    oldest = now
  end
else
--> add_run
end
if n then
  if first then
    shape = slots + 256 * n + 65536 * first + 16777216 * ring
  end
  fits, used, fresh_at = true, used + cost, now + window
  record = pack('<BI6I5I7I7I5', limit_head, used, shape, oldest, now, units)
  numbers[last_number + 1] = used
  numbers[last_number + 2] = 0
  numbers[last_number + 3] = window
end
--}

--{ drop_expired
-- The units of runs that have left, and when the next one was taken, are in the ring: first a few slots are read, then all.
first, ring = (shape - shape % 65536) / 65536 % 256, (shape - shape % 16777216) / 16777216
local size, count = slots - 128, 4
repeat
  if count > n - 1 then
    count = n - 1
  end
  if count > size - first then
    count = size - first
  end
  local at = ring + 12 * first
  local runs = try('GETRANGE', keys[next_packed], format('%d', at), format('%d', at + 12 * count - 1))
  if count < 1 or #runs < 12 * count then
    first = nil
    break
  end
  for place = 1, 12 * count, 12 do
    local more
    oldest, more = unpack('<I7I5', runs, place)
    if oldest + window > now then
      break
    end
    used, n, first = used - more, n - 1, first + 1
  end
  if first == size then
    first = 0
  end
  if n == 1 then
    oldest = newest
  end
  count = size
until oldest + window > now
--}

--{ frees_in
-- Counted from the oldest run, until so many units have left that the cost fits.
local size, slot, left = slots - 128, first or (shape - shape % 65536) / 65536 % 256, over
ring = (shape - shape % 16777216) / 16777216
local runs = n > 1 and try('GETRANGE', keys[next_packed], ring, ring + 12 * size - 1) or ''
for _ = 2, n do
  if #runs < 12 * (slot + 1) then
    frees_in = nil
    break
  end
  local taken, more = unpack('<I7I5', runs, 12 * slot + 1)
  left, slot, frees_in = left - more, (slot + 1) % size, taken + window - now
  if left <= 0 then
    break
  end
end
if frees_in and left > 0 then
  frees_in = newest + window - now
end
--}

--{ add_run
-- The charge is a run of its own, and the newest one so far goes to the ring.
local size, run, reply = slots - 128, pack('<I7I5', newest, units), nil
if not first then
  first, ring = (shape - shape % 65536) / 65536 % 256, (shape - shape % 16777216) / 16777216
end
if n < size and n <= precision then
  reply = try('SETRANGE', keys[next_packed], format('%d', ring + 12 * ((first + n - 1) % size)), run)
elseif not several and (rings or from > #value) then
  -- Nothing stands behind the ring. Its runs in their order:
  local runs = size > 0 and try('GETRANGE', keys[next_packed], ring, ring + 12 * size - 1) or ''
  if #runs == 12 * size then
    runs = sub(sub(runs, 12 * first + 1) .. sub(runs, 1, 12 * first), 1, 12 * (n - 1)) .. run
    if n > precision and may_merge then
--> merge
    end
    if n <= precision then
--> rewrite
    end
  end
end
if reply and (reply == length or type(reply) == 'number' or reply.ok) then
  n, units = n + 1, cost
else
  n = nil
end
--}

--{ merge
-- Runs of one cell become one, of the newest one's time.
local merged, taken, more = {}, unpack('<I7I5', runs)
for place = 13, #runs, 12 do
  local next_taken, next_more = unpack('<I7I5', runs, place)
  if floor(taken / step) == floor(next_taken / step) then
    next_more = next_more + more
  else
    merged[#merged + 1] = pack('<I7I5', taken, more)
  end
  taken, more = next_taken, next_more
end
merged[#merged + 1] = pack('<I7I5', taken, more)
runs, n, oldest, units = table.concat(merged), #merged, unpack('<I7', merged[1]), more
--}

--{ rewrite
-- The runs so far, in a ring with room for one more. Redis may refuse the record that comes after, so this is a whole state.
first, size, ring, rings = 0, n < 8 and 8 or n < 32 and 32 or precision + 1, from, true
if size > precision + 1 then
  size = precision + 1
end
slots, length = size + 128, from + 12 * size
shape = slots + 256 * n + 16777216 * ring
reply = try('SET', keys[next_packed], sub(value, 1, from - 32)
  .. pack('<BI6I5I7I7I5B', limit_head, used, shape, oldest, newest, units, RINGS) .. runs .. rep('\0', 12 * (size - n)), 'KEEPTTL')
--}

--{ records
local function sliding_window()
  local rule, RUN = {}, 12

  function rule.size()
    return 30
  end

  -- The payload of the record at this place of a state, with the runs that lie in its ring.
  function rule.gather(value, at)
    local used, slots, n, first, ring = unpack('<I6BBBI2', value, at)
    -- The ring's runs lie in one piece, or in two if they pass its end.
    local size, behind = slots - 128, first + n - 1
    if n - 1 > size or first > 0 and first >= size then
      error('tollgate: a record that cannot be read', 0)
    end
    local to = math.min(behind, size)
    local runs = sub(value, ring + RUN * first + 1, ring + RUN * to) .. sub(value, ring + 1, ring + RUN * (behind - to))
    local payload = pack('<I6B', used, n) .. runs .. sub(value, at + 18, at + 29)
    if n == 0 or #payload ~= 7 + RUN * n then
      error('tollgate: a record that cannot be read', 0)
    end
    return payload
  end

  -- The payload as it is written, the runs in its ring of that offset, and the ring's length.
  function rule.spread(payload, ring, window, precision)
    local used, n = unpack('<I6B', payload)
    local last, step, slots = #payload - RUN + 1, ceil(window / precision), precision + 1
    local oldest, newest = unpack('<I7', payload, 8), unpack('<I7', payload, last)
    if n == 1 then
      slots, ring = 0, 0
    elseif n < 32 then
      slots = math.min(n < 8 and 8 or 32, slots)
    elseif n > precision and floor(unpack('<I7', payload, last - RUN) / step) == floor(newest / step) then
      -- A clock that stepped back has left two runs in one cell. The next charge has to merge them, in the general way.
      slots = 127
    end
    local front = pack('<I6BBBI2I7', used, slots + 128, n, 0, ring, oldest)
    return front .. sub(payload, last), sub(payload, 8, last - 1), RUN * math.min(slots, precision + 1)
  end

  function rule.fresh_at(value, at, window)
    return unpack('<I7', value, at + 7 + RUN * (byte(value, at + 6) - 1)) + window
  end

  -- All neighbours of one cell as one run, of the later one's time, from this place on.
  local function merge(runs, place, step)
    local merged, taken, more = { sub(runs, 1, place - 1) }, unpack('<I7I5', runs, place)
    for at = place + RUN, #runs, RUN do
      local next_taken, next_more = unpack('<I7I5', runs, at)
      if floor(taken / step) == floor(next_taken / step) then
        next_more = next_more + more
      else
        merged[#merged + 1] = pack('<I7I5', taken, more)
      end
      taken, more = next_taken, next_more
    end
    return table.concat(merged) .. pack('<I7I5', taken, more)
  end

  -- The runs that count now, and their units. Runs ahead of a clock that stepped back are one run of now.
  local function live(payload, window)
    local used, place, last, moved = unpack('<I6', payload), 8, #payload - RUN + 1, 0
    while place <= last do
      local taken, more = unpack('<I7I5', payload, place)
      if taken + window > now then
        break
      end
      used, place = used - more, place + RUN
    end
    if place > last or unpack('<I7', payload, last) <= now then
      return sub(payload, place), used, false
    end
    while last >= place do
      local taken, more = unpack('<I7I5', payload, last)
      if taken < now then
        break
      end
      moved, last = moved + more, last - RUN
    end
    return sub(payload, place, last + RUN - 1) .. pack('<I7I5', now, moved), used, true
  end

  -- The runs after a charge.
  local function charged(runs, cost, precision, step)
    local last = #runs - RUN + 1
    local taken, more = now, 0
    if last > 0 then
      taken, more = unpack('<I7I5', runs, last)
    end
    if last > 0 and taken == now then
      runs = sub(runs, 1, last - 1) .. pack('<I7I5', now, more + cost)
    else
      runs = runs .. pack('<I7I5', now, cost)
    end
    local n = #runs / RUN
    local before = n > 1 and unpack('<I7', runs, #runs - 2 * RUN + 1) or 0
    if n > precision and floor(before / step) == floor(now / step) then
      runs = merge(runs, #runs - 2 * RUN + 1, step)
    elseif n > precision + 1 then
      runs = merge(runs, 1, step)
    end
    return runs
  end

  function rule.decide(limit, payload, charges, cost)
    local window, runs, used, clamped = limit.window, '', 0, false
    if payload then
      runs, used, clamped = live(payload, window)
    end
    local over, place, frees_in = used + cost - limit.quota, 1, 0
    local fits = over <= 0
    if fits and charges then
      runs, used = charged(runs, cost, limit.precision, limit.step), used + cost
    end
    while over > 0 and place <= #runs do
      local taken, more = unpack('<I7I5', runs, place)
      over, place, frees_in = over - more, place + RUN, taken + window - now
    end
    local fresh_in = used > 0 and unpack('<I7', runs, #runs - RUN + 1) + window - now or 0
    return fits, pack('<I7I7I7', used, frees_in, fresh_in), pack('<I6B', used, #runs / RUN) .. runs, clamped
  end

  -- Units of that instant, while they count: from the run of it, or the one that took them up, which is of its cell.
  local function undo(payload, cost, limit, instant)
    local used, n = unpack('<I6B', payload)
    local place, taken, more = 8, -1, 0
    while taken < instant do
      if place > #payload then
        return false
      end
      taken, more = unpack('<I7I5', payload, place)
      place = place + RUN
    end
    if instant > now or instant + limit.window <= now or floor(taken / limit.step) ~= floor(instant / limit.step) then
      return false
    end
    local units, run = math.min(cost, more), ''
    if units < more then
      run = pack('<I7I5', taken, more - units)
    end
    local before, after = sub(payload, 8, place - RUN - 1), sub(payload, place)
    return true, units < used and pack('<I6B', used - units, run == '' and n - 1 or n) .. before .. run .. after
  end

  function rule.refund(payload, cost, limit, instant)
    if instant then
      return undo(payload, cost, limit, instant)
    end
    local used, n = unpack('<I6B', payload)
    if used <= cost then
      return used > 0, false
    end
    local units, last = cost, ''
    while units > 0 do
      local taken, more = unpack('<I7I5', payload, 8 + RUN * (n - 1))
      if more > units then
        last = pack('<I7I5', taken, more - units)
      else
        n = n - 1
      end
      units = units - math.min(more, units)
    end
    local whole = last == '' and n or n - 1
    return true, pack('<I6B', used - cost, n) .. sub(payload, 8, 7 + RUN * whole) .. last
  end

  return rule
end
--}
