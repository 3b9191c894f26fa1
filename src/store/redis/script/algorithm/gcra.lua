-- token_bucket, by GCRA. Twin of src/core/algorithm/gcra.rs, whose head explains tat, emission interval and tolerance, and how a
-- limit reads a debt that another rate ran up.
-- Payload: the number of the quota's bytes B; the quota, which is the rate at which the debt drains; the tat I7. If the debt was above a
-- window when it was written, eight is added to the first byte, and the time of the writing follows, I7.
-- Reading: backlog I7. If it drains at another rate than the limit's, 128 is added to its last byte, and that rate's emission follows, I7.
--
-- The one algorithm whose rule is written twice: a debt of the limit's own rate and of a window at most, which nearly all are,
-- needs a fraction of the arithmetic.

repeat
--{ decide
if kind == TOKEN_BUCKET then
  -- The prefix, which holds the rate, is compared as a number.
  local backlog = 0
  if value then
    if #value - from < bucket_end then
      break
    end
    local head, after
    head, before, after = unpack(bucket, value, from)
    if head ~= limit_head then
      break
    end
    from = after
    if before > now then
      backlog = before - now
    end
  end
  local debt = backlog + cost * step
  if backlog > window then
    break
  elseif debt > burst * step or not charges then
    fits = debt <= burst * step
    last_number = last_number + 1
    numbers[last_number] = backlog
  elseif debt <= window then
    fits = true
    last_number = last_number + 1
    numbers[last_number] = debt
    fresh_at = now + debt
    record = pack(bucket, limit_head, fresh_at)
  end
--}
end
until true

--{ records
local function gcra()
  local rule = {}
  -- The formats of a payload, by the number of bytes of its quota.
  local RATES = { '<BI1I7', '<BI2I7', '<BI3I7', '<BI4I7', '<BI5I7' }

  function rule.size(value, at)
    local tag = byte(value, at)
    return tag and 8 + tag % 8 + (tag >= 8 and 7 or 0)
  end

  -- The tat, the quota, and the time of the writing where it is known.
  local function load(payload)
    local tag, quota, tat, after = unpack(RATES[byte(payload) % 8], payload)
    return tat, quota, tag >= 8 and unpack('<I7', payload, after) or nil
  end

  function rule.fresh_at(value, at)
    return (load(sub(value, at)))
  end

  local function save(backlog, quota, window)
    local tat = now + backlog
    local width = quota < 256 and 1 or quota < 65536 and 2 or quota < 16777216 and 3 or quota < 4294967296 and 4 or 5
    if backlog > window then
      return pack(RATES[width], width + 8, quota, tat) .. pack('<I7', now)
    end
    return pack(RATES[width], width, quota, tat)
  end

  -- A debt at another rate, as many units, rounded up. Products are too large for a number, so those of the part of a unit are
  -- made seven bits at a time: every number stays below 2^53, since both intervals are below 2^45.
  local function convert(backlog, from, to)
    local units, rest = floor(backlog / from), backlog % from
    local quotient, remainder, digit = 0, 0, 4398046511104 -- 2^42
    while digit >= 1 do
      local sum = remainder * 128 + rest * (floor(to / digit) % 128)
      quotient = quotient * 128 + floor(sum / from)
      remainder, digit = sum % from, digit / 128
    end
    return units * to + quotient + (remainder > 0 and 1 or 0)
  end

  -- A debt as a limit reads it: the debt, the interval and the quota of its rate, and whether a charging call writes it also when
  -- it denies. Where the clock stepped back, the debt is at most what it was when it was written, as far as is known. A peek reads
  -- the debt at the rate that it has.
  local function read(limit, payload, peeks)
    if not payload then
      return 0, limit.step, limit.quota, false
    end
    local tat, quota, written = load(payload)
    local backlog = tat - now
    if written then
      backlog = tat - max(now, written)
    elseif backlog > limit.window then
      backlog = limit.window
    end
    if backlog <= 0 then
      return 0, limit.step, limit.quota, false
    end
    local emission = ceil(limit.window / quota)
    if emission > limit.step and not peeks then
      backlog, emission, quota = convert(backlog, emission, limit.step), limit.step, limit.quota
    end
    return backlog, emission, quota, tat > now + backlog
  end

  local function reading(limit, backlog, emission)
    local low = backlog % STAMP_TOP
    local top = (backlog - low) / STAMP_TOP
    if emission == limit.step then
      return pack('<I6B', low, top)
    end
    return pack('<I6BI7', low, top + 128, emission)
  end

  -- As the short way decides, whatever the debt is.
  function rule.decide(limit, payload, charges, cost)
    local backlog, emission, quota, clamped = read(limit, payload, charges == nil)
    local fits = backlog <= (limit.burst - cost) * emission
    if fits and charges then
      if emission ~= limit.step then
        backlog = convert(backlog, emission, limit.step)
      end
      backlog, emission, quota = backlog + cost * limit.step, limit.step, limit.quota
    end
    local after = charges ~= nil and save(backlog, quota, limit.window)
    return fits, reading(limit, backlog, emission), after, clamped
  end

  -- A unit of which a part has come back by itself is given back as a whole, but no debt falls below 0. The rate stays as it is. An undo
  -- leaves out what has come back since that instant: the later of the charge and the end of the debt before it.
  function rule.refund(payload, cost, limit, instant)
    local tat, quota = load(payload)
    local backlog, given = tat - now, cost * ceil(limit.window / quota)
    if instant then
      given = max(given - max(now - instant, 0), 0)
    end
    local left = backlog - given
    return backlog > 0 and given > 0, left > 0 and save(left, quota, limit.window)
  end

  return rule
end
--}
