-- fixed_window: at most quota per window. Twin of src/core/algorithm/fixed_window.rs.
-- Payload: a stamp, when the window began, whose tag says in how many bytes the count follows. A window of a calendar lasts as long
-- as the calendar's window in which it began. Its fingerprint has five bytes, which are compared as one number.
-- Reading: count, ends_in, and of a calendar the length of the present window.

repeat
--{ decide
if kind == FIXED_WINDOW_BY_CLOCK or kind == FIXED_WINDOW_BY_FIRST_REQUEST then
  fixed = fixed or { '<BI6I2', '<BI6I3', '<BI6I4', '<BI6I5', '<BI6I6' }
  -- `stamp_end` is the offset of a stamp's last byte from the record's first.
  local formats, stamp_end, start, count = fixed, 7, nil, 0
  if calendar then
    dated = dated or { '<I5I6I2', '<I5I6I3', '<I5I6I4', '<I5I6I5', '<I5I6I6' }
    formats, stamp_end, start = dated, 11, calendar[1]
  else
    start = kind == FIXED_WINDOW_BY_FIRST_REQUEST and now or now - now % window
  end
  fresh_at = start + window
  if value then
    local top = byte(value, from + stamp_end) or 0
    local width = (top - top % 32) / 32
    local last = stamp_end + width
    if not formats[width] or #value - from < last then
      break
    end
    -- The last byte of the stamp and the count, as one number.
    local head, low, rest = unpack(formats[width], value, from)
    local began = low + (top - width * 32) * STAMP_TOP
    if head ~= limit_head or began > now and not in_general then
      break
    end
    from = from + last + 1
    before = began + window
    if calendar and began < start then
      before = began + (began >= calendar[2] and start - calendar[2] or calendar[2] - calendar[3])
    end
    if now < before then
      count = (rest - top) / 256
      if began > now then
        -- The clock stepped back: the window begins now and keeps its count for as long as a window lasts.
        start, fresh_at, clamped = now, now + window, true
      else
        start = began
        fresh_at = before
      end
    end
  end
  fits = count + cost <= quota
  if fits and charges then
    count = count + cost
  end
  if fits and charges or in_general then
    local width = count < 256 and 1 or count < 65536 and 2 or count < 16777216 and 3 or count < 4294967296 and 4 or 5
    local low = start % STAMP_TOP
    record = pack(formats[width], limit_head, low, (start - low) / STAMP_TOP + width * 32 + count * 256)
  end
  numbers[last_number + 1] = count
  numbers[last_number + 2] = fresh_at - now
  last_number = last_number + 2
  if calendar then
    numbers[last_number + 1], last_number = window, last_number + 1
    -- The key is kept for two hours more. A newer database may move the end of the window, and most charges leave the expiry.
    fresh_at, before = fresh_at + 7200000000, before and before + 7200000000
  end
--}
end
until true

--{ calendar_starts
-- Reads what a calendar's limit has behind its numbers, and its prefix once more, as one number.
calendar = { unpack('<I7I7I7', request, at) }
prefix, limit_head, at = false, unpack('<I5', request, at - 26), calendar[4]
--}

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
