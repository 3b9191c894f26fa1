-- fixed_window: at most quota per window. Twin of src/core/algorithm/fixed_window.rs.
-- Payload: a stamp, when the window began, whose tag says in how many bytes the count follows.
-- Reading: count, ends_in.

repeat
--{ decide
if kind == FIXED_WINDOW_BY_CLOCK or kind == FIXED_WINDOW_BY_FIRST_REQUEST then
  fixed = fixed or { '<BI6I2', '<BI6I3', '<BI6I4', '<BI6I5', '<BI6I6' }
  local start, count = kind == FIXED_WINDOW_BY_FIRST_REQUEST and now or now - now % window, 0
  if value then
    local top = byte(value, from + 7) or 0
    local width = (top - top % 32) / 32
    if not fixed[width] or #value - from < 7 + width then
      break
    end
    -- The last byte of the stamp and the count, as one number.
    local head, low, rest = unpack(fixed[width], value, from)
    local began = low + (top - width * 32) * STAMP_TOP
    if head ~= limit_head or began > now and not in_general then
      break
    end
    from = from + 8 + width
    before = began + window
    if now < before then
      start, count = began, (rest - top) / 256
      if began > now then
        -- The clock stepped back: the window begins now and keeps its count for as long as a window lasts.
        start, clamped = now, true
      end
    end
  end
  local charged = count + cost
  fits = charged <= quota
  fresh_at = start + window
  if fits and charges then
    count = charged
  end
  if fits and charges or in_general then
    local width = count < 256 and 1 or count < 65536 and 2 or count < 16777216 and 3 or count < 4294967296 and 4 or 5
    local low = start % STAMP_TOP
    record = pack(fixed[width], limit_head, low, (start - low) / STAMP_TOP + width * 32 + count * 256)
  end
  numbers[last_number + 1] = count
  numbers[last_number + 2] = fresh_at - now
  last_number = last_number + 2
--}
end
until true

--{ records
local function fixed_window()
  local rule, COUNTS = {}, { '<c7I1', '<c7I2', '<c7I3', '<c7I4', '<c7I5' }

  function rule.size(value, at)
    local top = byte(value, at + 6)
    return top and 7 + floor(top / 32)
  end

  function rule.fresh_at(value, at, window)
    return read_time(value, at) + window
  end

  -- An undo, of a charge at this instant, gives nothing back where that was in a window before.
  function rule.refund(payload, cost, _, instant)
    local format = COUNTS[#payload - 7]
    local stamp, count = unpack(format, payload)
    if instant and instant < read_time(payload, 1) then
      return false
    end
    return count > 0, count > cost and pack(format, stamp, count - cost)
  end

  return rule
end
--}
