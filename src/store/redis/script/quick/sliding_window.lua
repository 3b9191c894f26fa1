-- sliding_window; see general/sliding_window.lua. A merge and runs that lie ahead are left to the rule.
elseif kind == 4 or kind == 5 then
  local RUN, used, first, last, newest, units = 12, 0, 1, 0, nil, 0
  if value then
    if #value - from < 7 then
      break
    end
    local head, n
    head, used, n = unpack('<BI6B', value, from)
    if n == 0 or #value - from < 7 + RUN * n then
      break
    end
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
  local runs, over = (last - first + 1) / RUN, used + cost - quota
  fits = over <= 0
  if over > 0 or not charges then
    local frees_in = 0
    while over > 0 and first < last do
      local taken, more = unpack('<I7I5', value, first)
      over, first = over - more, first + RUN
      frees_in = taken + window - now
    end
    numbers[place + 1] = used
    numbers[place + 2] = frees_in
    numbers[place + 3] = used > 0 and newest + window - now or 0
  else
    if runs == 0 then
      runs, units = 1, cost
    elseif newest == now and runs <= precision
      or newest < now and runs >= precision and floor(newest / step) == floor(now / step) then
      last, units = last - RUN, units + cost
    elseif runs < precision then
      runs, units = runs + 1, cost
    else
      fits = nil
      break
    end
    fresh_at = now + window
    used = used + cost
    record = pack('<BI6B', limit_head, used, runs) .. sub(value or '', first, last) .. pack('<I7I5', now, units)
    numbers[place + 1] = used
    numbers[place + 2] = 0
    numbers[place + 3] = window
  end
  place = place + 3
