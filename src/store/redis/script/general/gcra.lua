-- token_bucket, by GCRA. Twin of src/algorithm/gcra.rs, whose head explains tat, emission interval and tolerance, and how a
-- limit reads a debt that another rate ran up.
-- Payload: the rate that the debt drains at, as a quota: in how many bytes it follows B, and the quota; then the tat I7. When the
-- debt was above a window, eight is added to the first byte and the time of the writing follows, I7.
-- State: backlog, emission, quota. Reading: backlog, with another rate's emission after it, where it is that: then 128 is added to
-- the last byte of the backlog.
local function gcra()
  local rule = { numbers = 'I6Bc0' }
  local RATES = { '<BI1', '<BI2', '<BI3', '<BI4', '<BI5' }

  function rule.size(value, at)
    local tag = byte(value, at)
    return tag and 8 + tag % 8 + (tag >= 8 and 7 or 0)
  end

  -- The tat, the quota, and the time of the writing where it is known.
  local function load(value, at)
    local tag, written = byte(value, at), nil
    local width = tag % 8
    local quota, tat, after = unpack('<I' .. width .. 'I7', value, at + 1)
    if tag >= 8 then
      written = unpack('<I7', value, after)
    end
    return tat, quota, written
  end

  function rule.fresh_at(value, at)
    return (load(value, at))
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

  -- A debt as a limit reads it. Where the clock stepped back, it is at most what it was when it was written, as far as is known.
  local function view(limit, tat, quota, written)
    local backlog = tat - now
    if written then
      backlog = tat - math.max(now, written)
    elseif backlog > limit.window then
      backlog = limit.window
    end
    if backlog <= 0 then
      return 0, limit.emission, limit.quota, false, tat
    end
    local emission = math.ceil(limit.window / quota)
    if emission > limit.emission then
      backlog, emission, quota = convert(backlog, emission, limit.emission), limit.emission, limit.quota
    end
    return backlog, emission, quota, tat > now + backlog, tat
  end

  function rule.view(value, at, limit)
    if not value then
      return 0, limit.emission, limit.quota, false
    end
    return view(limit, load(value, at))
  end

  -- Of a record of an older version, which had no rate: it is the limit's.
  function rule.view_old(value, at, limit)
    local tat, tag = read_stamp(unpack('<I6B', value, at))
    return view(limit, tat, limit.quota, tag == 1 and unpack('<I7', value, at + 7))
  end

  function rule.fits(limit, backlog, emission, _, cost)
    return backlog <= (limit.burst - cost) * emission
  end

  function rule.charge(limit, backlog, emission, _, cost)
    if emission ~= limit.emission then
      backlog = convert(backlog, emission, limit.emission)
    end
    return backlog + cost * limit.emission, limit.emission, limit.quota
  end

  function rule.save(limit, backlog, _, quota)
    local tat, width = now + backlog, bytes_of(quota)
    if backlog > limit.window then
      return pack(RATES[width], width + 8, quota) .. pack('<I7I7', tat, now), tat
    end
    return pack(RATES[width], width, quota) .. pack('<I7', tat), tat
  end

  function rule.reading(limit, backlog, emission)
    local low, top = stamp(backlog, 0)
    if emission == limit.emission then
      return low, top, ''
    end
    return low, top + 128, pack('<I7', emission)
  end

  return rule
end

-- As versions before this one kept it: a stamp, the tat; its tag is 1 when the time of the writing follows, I7.
local function gcra_old()
  local rule = gcra()
  rule.view = rule.view_old

  function rule.size(value, at)
    local top = byte(value, at + 6)
    return top and (top >= 32 and 14 or 7)
  end

  function rule.fresh_at(value, at)
    return (read_stamp(unpack('<I6B', value, at)))
  end

  return rule
end
