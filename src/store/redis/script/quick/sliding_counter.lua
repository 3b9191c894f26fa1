-- sliding_counter; see general/sliding_counter.lua. A window that lies ahead is left to the rule.
elseif kind == 3 then
  local start, current, previous, head, low, top, tag = now - now % window, 0, 0, nil, nil, nil, 0
  local width = value and (#value - 8) / 2
  if width == 1 or width == 2 or width == 3 or width == 4 or width == 5 then
    head, low, top, current, previous = unpack('<BI6BI' .. width .. 'I' .. width, value)
    tag = floor(top / 32)
    local began = low + (top - tag * 32) * STAMP_TOP
    before = began + 2 * window
    if began > now then
      head = nil
    elseif now < began + window then
      start = began
    elseif now < before then
      start, current, previous = began + window, 0, current
    else
      current, previous = 0, 0
    end
  end
  if not value or head == limit_head and tag == width then
    local charged, elapsed = current + cost, now - start
    if charged * window + previous * (window - elapsed) > quota * window then
      reply = pack('<BI7I7I7', 48, current, previous, elapsed)
    else
      width = bytes_of(math.max(charged, previous))
      top, fresh_at = floor(start / STAMP_TOP), start + 2 * window
      after = pack('<BI6BI' .. width .. 'I' .. width, limit_head, start - top * STAMP_TOP, top + width * 32, charged, previous)
      reply = pack('<BI7I7I7', 49, charged, previous, elapsed)
    end
  end
