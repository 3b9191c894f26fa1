-- sliding_counter; see general/sliding_counter.lua. A window that lies ahead is left to the rule.
elseif kind == 3 then
  counter = counter or { '<BI6BI1I1', '<BI6BI2I2', '<BI6BI3I3', '<BI6BI4I4', '<BI6BI5I5' }
  local head, start, current, previous = limit_head, now - now % window, 0, 0
  local top = value and byte(value, from + 7)
  local width = top and floor(top / 32)
  if value and not (counter[width] and #value - from >= 7 + 2 * width) then
    head = nil
  elseif value then
    local low, held, older
    head, low, top, held, older = unpack(counter[width], value, from)
    from = from + 8 + 2 * width
    local began = low + (top - width * 32) * STAMP_TOP
    before = began + 2 * window
    if began > now then
      head = nil
    elseif now < began + window then
      start, current, previous = began, held, older
    elseif now < before then
      start, previous = began + window, held
    end
  end
  local charged, elapsed = current + cost, now - start
  if head ~= limit_head then
    record = nil
  elseif charged * window + previous * (window - elapsed) > quota * window then
    answer = pack('<BI7I7I7', 48, current, previous, elapsed)
  else
    width, top, fresh_at = bytes_of(math.max(charged, previous)), floor(start / STAMP_TOP), start + 2 * window
    record = pack(counter[width], head, start - top * STAMP_TOP, top + width * 32, charged, previous)
    answer = pack('<BI7I7I7', 49, charged, previous, elapsed)
  end
