-- fixed_window; see general/fixed_window.lua. A window that lies ahead is left to the rule.
elseif kind <= 1 then
  fixed = fixed or { '<BI6BI1', '<BI6BI2', '<BI6BI3', '<BI6BI4', '<BI6BI5' }
  local start, count = kind == 1 and now or now - now % window, 0
  if value then
    local top = byte(value, from + 7)
    local width = top and floor(top / 32)
    if not fixed[width] or #value - from < 7 + width then
      break
    end
    local head, low, _, held = unpack(fixed[width], value, from)
    local began = low + (top - width * 32) * STAMP_TOP
    if head ~= limit_head or began > now then
      break
    end
    from = from + 8 + width
    before = began + window
    if now < before then
      start, count = began, held
    end
  end
  local charged = count + cost
  fits = charged <= quota
  fresh_at = start + window
  if fits then
    local width, top = bytes_of(charged), floor(start / STAMP_TOP)
    record = pack(fixed[width], limit_head, start - top * STAMP_TOP, top + width * 32, charged)
    count = charged
  end
  numbers[place + 1] = count
  numbers[place + 2] = fresh_at - now
  place = place + 2
