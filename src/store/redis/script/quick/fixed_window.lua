-- fixed_window; see general/fixed_window.lua. A window that lies ahead is left to the rule.
elseif kind <= 1 then
  local start, count, head, low, top, tag = kind == 1 and now or now - now % window, 0, nil, nil, nil, 0
  local width = value and #value - 8
  if width and width >= 1 and width <= 5 then
    head, low, top, count = unpack('<BI6BI' .. width, value)
    tag = floor(top / 32)
    local began = low + (top - tag * 32) * STAMP_TOP
    before = began + window
    if began > now then
      head = nil
    elseif now < before then
      start = began
    else
      count = 0
    end
  end
  if not value or head == limit_head and tag == width then
    local charged = count + cost
    fresh_at = start + window
    if charged > quota then
      reply = pack('<BI7I7', 48, count, fresh_at - now)
    else
      width = bytes_of(charged)
      top = floor(start / STAMP_TOP)
      after = pack('<BI6BI' .. width, limit_head, start - top * STAMP_TOP, top + width * 32, charged)
      reply = pack('<BI7I7', 49, charged, fresh_at - now)
    end
  end
