-- fixed_window; see general/fixed_window.lua. A window that lies ahead is left to the rule.
elseif kind <= 1 then
  fixed = fixed or { '<BI6I2', '<BI6I3', '<BI6I4', '<BI6I5', '<BI6I6' }
  local start, count = kind == 1 and now or now - now % window, 0
  if value then
    local top = byte(value, from + 7) or 0
    local width = (top - top % 32) / 32
    if not fixed[width] or #value - from < 7 + width then
      break
    end
    -- The last byte of the stamp and the count, as one number.
    local head, low, rest = unpack(fixed[width], value, from)
    local began = low + (top - width * 32) * STAMP_TOP
    if head ~= limit_head or began > now then
      break
    end
    from = from + 8 + width
    before = began + window
    if now < before then
      start, count = began, (rest - top) / 256
    end
  end
  local charged = count + cost
  fits = charged <= quota
  fresh_at = start + window
  if fits and charges then
    local width, low = charged < 256 and 1 or charged < 65536 and 2 or bytes_of(charged), start % STAMP_TOP
    record = pack(fixed[width], limit_head, low, (start - low) / STAMP_TOP + width * 32 + charged * 256)
    count = charged
  end
  numbers[place + 1] = count
  numbers[place + 2] = fresh_at - now
  place = place + 2
