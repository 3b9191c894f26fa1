-- fixed_window; see general/fixed_window.lua. A window that lies ahead is left to the rule.
elseif kind <= 1 then
  fixed = fixed or { '<BI6BI1', '<BI6BI2', '<BI6BI3', '<BI6BI4', '<BI6BI5' }
  local head, start, count = limit_head, kind == 1 and now or now - now % window, 0
  local top = value and byte(value, from + 7)
  local width = top and floor(top / 32)
  if value and not (fixed[width] and #value - from >= 7 + width) then
    head = nil
  elseif value then
    local low, held
    head, low, top, held = unpack(fixed[width], value, from)
    from = from + 8 + width
    local began = low + (top - width * 32) * STAMP_TOP
    before = began + window
    if began > now then
      head = nil
    elseif now < before then
      start, count = began, held
    end
  end
  local charged = count + cost
  if head ~= limit_head then
    record = nil
  elseif charged > quota then
    answer = pack('<BI7I7', 48, count, start + window - now)
  else
    width, top, fresh_at = bytes_of(charged), floor(start / STAMP_TOP), start + window
    record = pack(fixed[width], head, start - top * STAMP_TOP, top + width * 32, charged)
    answer = pack('<BI7I7', 49, charged, fresh_at - now)
  end
