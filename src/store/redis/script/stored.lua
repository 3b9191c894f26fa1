-- Takes a packed state apart into records, for the general way. request.lua describes packed states.

--{ stored
local common_windows

-- The window of a fingerprint, in microseconds.
local function window_of(fingerprint)
  if byte(fingerprint) == BLOCK then
    fingerprint = sub(fingerprint, 2)
  end
  local common = floor(byte(fingerprint) / 8)
  if common < 31 then
    common_windows = common_windows or {
--> common_windows
    }
    return common_windows[common + 1]
  end
  local code = unpack('<I4', fingerprint, #fingerprint - 3)
  if code >= 3221225472 then
    -- A calendar's, of which no window is longer than this; see src/core/plan/calendar.rs.
    local shape = floor((code - 3221225472) / 16777216)
    return ((shape == 0 and 1 or shape <= 7 and 7 or 31) * 24 + 3) * 3600000000
  end
  if code >= 2147483648 then
    return (code - 2147483648) * 1000000
  end
  return code * 1000
end

-- Splits a packed state into its records. The result is a list in their order, in which each is also found by its fingerprint.
local function parse_records(value)
  local records, position = {}, 1
  while position <= #value and byte(value, position) ~= RINGS do
    local head, size = byte(value, position), 1
    local is_block = head == BLOCK
    if is_block then
      head, size = byte(value, position + 1), 2
    end
    if not head or not (KINDS[head % 8] or is_block and head % 8 == SLIDING_LOG) then
      error('tollgate: state of an unknown fingerprint, head ' .. tostring(head))
    elseif head % 8 == SLIDING_WINDOW_OF_PRECISION then
      size = size + 1
    end
    if head >= 248 then
      size = size + 4
    end
    local fingerprint = sub(value, position, position + size - 1)
    local rule = is_block and block_rule or rule_of(head % 8)
    local next_position = position + size + rule.size(value, position + size)
    local text = rule.gather and fingerprint .. rule.gather(value, position + size) or sub(value, position, next_position - 1)
    local record = { fingerprint = fingerprint, text = text, window = false, rule = rule }
    records[#records + 1] = record
    records[fingerprint] = record
    position = next_position
  end
  return records
end

-- A number for each fingerprint, by which fingerprints are sorted as by their bytes. Those of blocks come first.
local function order_of(fingerprint)
  local before = 0
  if byte(fingerprint) == BLOCK then
    fingerprint, before = sub(fingerprint, 2), STAMP_TOP
  end
  return unpack('>I6', fingerprint .. '\0\0\0\0\0') - before
end

local function in_order(a, b)
  return order_of(a.fingerprint) < order_of(b.fingerprint)
end

-- Replaces the record of a limit by this text. Without a text, join() leaves the record out.
local function set_record(records, limit, text)
  local record = records[limit.fingerprint]
  if not record then
    record = {}
    records[#records + 1] = record
  end
  records.is_unsorted = records.is_unsorted or record.fingerprint ~= limit.fingerprint
  record.fingerprint, record.window, record.text = limit.fingerprint, not limit.calendar and limit.window, text
  records[limit.fingerprint] = record
end
--}
