-- sliding_counter; see general/sliding_counter.lua. A window that lies ahead is left to the rule.
elseif kind == 3 then
  counter = counter or { '<BI6BI1I1', '<BI6BI2I2', '<BI6BI3I3', '<BI6BI4I4', '<BI6BI5I5' }
  local start, current, previous = now - now % window, 0, 0
  if value then
    local top = byte(value, from + 7)
    local width = top and floor(top / 32)
    if not counter[width] or #value - from < 7 + 2 * width then
      break
    end
    local head, low, _, held, older = unpack(counter[width], value, from)
    local began = low + (top - width * 32) * STAMP_TOP
    if head ~= limit_head or began > now then
      break
    end
    from = from + 8 + 2 * width
    before = began + 2 * window
    if now < began + window then
      start, current, previous = began, held, older
    elseif now < before then
      start, previous = began + window, held
    end
  end
  local charged, elapsed = current + cost, now - start
  fits = charged * window + previous * (window - elapsed) <= quota * window
  if fits then
    local width, top = bytes_of(max(charged, previous)), floor(start / STAMP_TOP)
    record = pack(counter[width], limit_head, start - top * STAMP_TOP, top + width * 32, charged, previous)
    fresh_at = start + 2 * window
    current = charged
  end
  numbers[place + 1] = current
  numbers[place + 2] = previous
  numbers[place + 3] = elapsed
  place = place + 3
