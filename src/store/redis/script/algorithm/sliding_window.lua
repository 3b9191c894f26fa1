-- sliding_window: at most quota in any window, in bounded memory. Twin of src/algorithm/sliding_window.rs.
-- Payload: total I6 (units in all runs), n B (runs, at most precision + 1), then n runs of at I7, units I5, oldest first,
-- times rising strictly.
-- Reading: used, frees_in, fresh_in.

repeat
--{ decide
if kind == 4 or kind == 5 then
  -- Places in value of the first run that counts and of the last one's end; the newest run's time and units. From SHORT bytes
  -- on, a second command costs Redis less than a copy of the runs, since its Lua hashes each byte of every string it makes.
  local RUN, SHORT, n, used, first, last, newest, units = 12, 240, 0, 0, 1, 0, nil, 0
  if value then
    if #value - from < 7 + RUN then
      break
    end
    local head, taken, more
    head, used, n, taken, more = unpack('<BI6BI7I5', value, from)
    if n == 0 or #value - from < 7 + RUN * n then
      break
    end
    first, last = from + 8, from + 7 + RUN * n
    newest, units = unpack('<I7I5', value, last - RUN + 1)
    if head ~= limit_head or newest > now and not in_general then
      break
    end
    from = last + 1
    before = newest + window
    while taken + window <= now do
      used, first = used - more, first + RUN
      if first > last then
        break
      end
      taken, more = unpack('<I7I5', value, first)
    end
    if newest > now then
--> clamp
    end
  end
  local runs, over = (last - first + 1) / RUN, used + cost - quota
  fits = over <= 0
  if over > 0 or not charges then
    local frees_in, place_of = 0, first
    while over > 0 and place_of < last do
      local taken, more = unpack('<I7I5', value, place_of)
      over, place_of = over - more, place_of + RUN
      frees_in = taken + window - now
    end
    numbers[last_number + 1] = used
    numbers[last_number + 2] = frees_in
    numbers[last_number + 3] = used > 0 and newest + window - now or 0
    if in_general then
      record, fresh_at = pack('<BI6B', limit_head, used, runs) .. sub(value or '', first, last), (newest or now) + window
    end
  else
--> charge_run
  end
  last_number = last_number + 3
--}
end
until true

--{ clamp
-- The clock stepped back: runs that lie ahead are one run of now.
local moved = 0
while first < last do
  local taken, more = unpack('<I7I5', value, last - RUN + 1)
  if taken < now then
    break
  end
  moved, last = moved + more, last - RUN
end
value = sub(value, 1, last) .. pack('<I7I5', now, moved)
last, newest, units, clamped = last + RUN, now, moved, true
--}

--{ charge_run
-- A charge is a run of its own, unless it joins the newest one, which it then makes one of now.
local merges
if runs > 0 and (newest == now or runs >= precision and newest < now and newest >= now - now % step) then
  merges = newest == now and runs > precision
  last, units = last - RUN, units + cost
else
  merges = runs > precision
  runs, units = runs + 1, cost
end
used = used + cost
local kept, newest_run = nil, pack('<I7I5', now, units)
if merges then
--> merge
end
fresh_at = now + window
record = pack('<BI6B', limit_head, used, runs)
if may_split and from - first == RUN * n and last + RUN + 1 == from and n * RUN > SHORT and not merges then
  tail, tail_at = newest_run, last
else
  record = record .. (kept or sub(value or '', first, last)) .. newest_run
end
numbers[last_number + 1] = used
numbers[last_number + 2] = 0
numbers[last_number + 3] = window
--}

--{ merge
-- Runs of one cell become one, of the newest one's time: the two newest if they are of one cell, else all if there are too many.
local all, merged, taken, more = sub(value, first, last) .. newest_run, {}, nil, nil
local at = #all - 2 * RUN + 1
if unpack('<I7', all, at) < now - now % step then
  at = runs > precision + 1 and 1 or at + RUN
end
kept = sub(all, 1, at - 1)
for place_of = at, #all, RUN do
  local next_taken, next_more = unpack('<I7I5', all, place_of)
  if taken and floor(taken / step) == floor(next_taken / step) then
    next_more = next_more + more
  elseif taken then
    merged[#merged + 1] = pack('<I7I5', taken, more)
  end
  taken, more = next_taken, next_more
end
kept, newest_run = kept .. table.concat(merged), pack('<I7I5', taken, more)
runs = #kept / RUN + 1
--}

--{ records
local function sliding_window()
  local rule, RUN = {}, 12

  function rule.size(value, at)
    local n = byte(value, at + 6)
    return n and 7 + RUN * n
  end

  function rule.fresh_at(value, at, window)
    return unpack('<I7', value, at + 7 + RUN * (byte(value, at + 6) - 1)) + window
  end

  function rule.refund(payload, cost)
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
