-- sliding_window; see general/sliding_window.lua. A denial, which reads all runs, a merge, and runs that lie ahead are left to
-- the rule.
elseif kind == 4 then
  local RUN, head, used, first, last, newest, units = 12, limit_head, 0, 1, 0, nil, 0
  local n = value and byte(value, from + 7)
  if value and not (n and n > 0 and #value - from >= 7 + RUN * n) then
    head = nil
  elseif value then
    head, used = unpack('<BI6', value, from)
    first, last = from + 8, from + 7 + RUN * n
    from = last + 1
    while first < last do
      local taken, more = unpack('<I7I5', value, first)
      if taken + window > now then
        break
      end
      used, first = used - more, first + RUN
    end
    newest, units = unpack('<I7I5', value, last - RUN + 1)
    before = newest + window
  end
  local runs = (last - first + 1) / RUN
  if head ~= limit_head or used + cost > quota or newest and newest > now then
    runs = nil
  elseif runs == 0 then
    runs, units = 1, cost
  elseif newest == now and runs <= precision
    or newest < now and runs >= precision and floor(newest / step) == floor(now / step) then
    last, units = last - RUN, units + cost
  elseif runs < precision then
    runs, units = runs + 1, cost
  else
    runs = nil
  end
  if runs then
    used, fresh_at = used + cost, now + window
    record = pack('<BI6B', head, used, runs) .. sub(value or '', first, last) .. pack('<I7I5', now, units)
    answer = pack('<BI7I7I7', 49, used, 0, window)
  end
