-- sliding_counter; see general/sliding_counter.lua. A window that lies ahead is left to the rule.
elseif kind == 3 then
  counter = counter or { '<BI6I2I1', '<BI6I3I2', '<BI6I4I3', '<BI6I5I4', '<BI6I6I5' }
  local start, current, previous = now - now % window, 0, 0
  if value then
    local top = byte(value, from + 7) or 0
    local width = (top - top % 32) / 32
    if not counter[width] or #value - from < 7 + 2 * width then
      break
    end
    local head, low, held, older = unpack(counter[width], value, from)
    held = (held - top) / 256
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
  if fits and charges then
    local width, low = bytes_of(max(charged, previous)), start % STAMP_TOP
    record = pack(counter[width], limit_head, low, (start - low) / STAMP_TOP + width * 32 + charged * 256, previous)
    fresh_at = start + 2 * window
    current = charged
  end
  numbers[place + 1] = current
  numbers[place + 2] = previous
  numbers[place + 3] = elapsed
  place = place + 3
