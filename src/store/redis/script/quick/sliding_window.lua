-- sliding_window; see general/sliding_window.lua. A denial, which reads all runs, a merge, and runs that lie ahead are left to
-- the rule.
elseif kind == 4 then
  local RUN, used, first, last, newest, units = 12, 0, 1, 0, nil, 0
  if value then
    local n = byte(value, from + 7)
    if not n or n == 0 or #value - from < 7 + RUN * n then
      break
    end
    local head
    head, used = unpack('<BI6', value, from)
    first, last = from + 8, from + 7 + RUN * n
    newest, units = unpack('<I7I5', value, last - RUN + 1)
    if head ~= limit_head or newest > now then
      break
    end
    from = last + 1
    before = newest + window
    while first < last do
      local taken, more = unpack('<I7I5', value, first)
      if taken + window > now then
        break
      end
      used, first = used - more, first + RUN
    end
  end
  local runs = (last - first + 1) / RUN
  if used + cost > quota then
    break
  elseif runs == 0 then
    runs, units = 1, cost
  elseif newest == now and runs <= precision
    or newest < now and runs >= precision and floor(newest / step) == floor(now / step) then
    last, units = last - RUN, units + cost
  elseif runs < precision then
    runs, units = runs + 1, cost
  else
    break
  end
  fits = true
  fresh_at = now + window
  used = used + cost
  record = pack('<BI6B', limit_head, used, runs) .. sub(value or '', first, last) .. pack('<I7I5', now, units)
  numbers[place + 1] = used
  numbers[place + 2] = 0
  numbers[place + 3] = window
  place = place + 3
