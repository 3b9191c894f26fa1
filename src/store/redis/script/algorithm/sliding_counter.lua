-- sliding_counter: an estimate from two clock-aligned windows. Twin of src/core/algorithm/sliding_counter.rs.
-- Payload: a stamp, when the window began, whose tag says in how many bytes each of current and previous follows.
-- Reading: current, previous, elapsed.
-- Products stay below 2^53: the config refuses a quota * window above it.

repeat
--{ decide
if kind == SLIDING_COUNTER then
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
    if head ~= limit_head or began > now and not in_general then
      break
    end
    from = from + 8 + 2 * width
    before = began + 2 * window
    if now < began + window then
      start, current, previous = began, held, older
      if began > now then
        -- The clock stepped back: the window begins now, and those after it follow it until the key is fresh again.
        start, clamped = now, true
      end
    elseif now < before then
      start, previous = began + window, held
    end
  end
  local charged, elapsed = current + cost, now - start
  fits = charged * window + previous * (window - elapsed) <= quota * window
  if fits and charges then
    current = charged
  end
  if fits and charges or in_general then
    local most, low = max(current, previous), start % STAMP_TOP
    local width = most < 256 and 1 or most < 65536 and 2 or most < 16777216 and 3 or most < 4294967296 and 4 or 5
    record = pack(counter[width], limit_head, low, (start - low) / STAMP_TOP + width * 32 + current * 256, previous)
    fresh_at = start + 2 * window
  end
  numbers[last_number + 1] = current
  numbers[last_number + 2] = previous
  numbers[last_number + 3] = elapsed
  last_number = last_number + 3
--}
end
until true

--{ records
local function sliding_counter()
  local rule, COUNTS = {}, { '<c7I1I1', '<c7I2I2', '<c7I3I3', '<c7I4I4', '<c7I5I5' }

  function rule.size(value, at)
    local top = byte(value, at + 6)
    return top and 7 + 2 * floor(top / 32)
  end

  function rule.fresh_at(value, at, window)
    return read_time(value, at) + 2 * window
  end

  -- The newest units are those of the current window. An undo gives back those of the window that its instant is in.
  function rule.refund(payload, cost, limit, instant)
    local format = COUNTS[(#payload - 7) / 2]
    local stamp, current, previous = unpack(format, payload)
    local of_current = math.min(cost, current)
    local of_previous = math.min(cost - of_current, previous)
    if instant then
      local start = read_time(payload, 1)
      of_current = instant >= start and of_current or 0
      of_previous = instant < start and instant + limit.window >= start and math.min(cost, previous) or 0
    end
    local kept = current - of_current + previous - of_previous > 0
    return of_current + of_previous > 0, kept and pack(format, stamp, current - of_current, previous - of_previous)
  end

  return rule
end
--}
