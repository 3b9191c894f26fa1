-- sliding_window; see general/sliding_window.lua. A denial, which reads all runs, a merge, and runs that lie ahead are left to
-- the rule.
elseif kind == 4 then
  local used, first, last, newest, units, RUN = 0, 1, 0, nil, 0, 12
  local head, total, n
  if value and #value >= 8 + RUN then
    head, total, n = unpack('<BI6B', value)
    if #value ~= 8 + RUN * n then
      head = nil
    end
  end
  if head == limit_head then
    used, first, last = total, 9, #value
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
  if value and head ~= limit_head or used + cost > quota or newest and newest > now then
    runs = nil
  elseif runs == 0 then
    runs, units = 1, cost
  elseif newest == now and runs <= precision
    or newest < now and runs >= precision and floor(newest / cell) == floor(now / cell) then
    last, units = last - RUN, units + cost
  elseif runs < precision then
    runs, units = runs + 1, cost
  else
    runs = nil
  end
  if runs then
    used, fresh_at = used + cost, now + window
    after = pack('<BI6B', limit_head, used, runs) .. sub(value or '', first, last) .. pack('<I7I5', now, units)
    reply = pack('<BI7I7I7', 49, used, 0, window)
  end
