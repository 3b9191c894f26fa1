-- Blocks: from a denial on, a limit with `block` denies every cost for so long. Twin of src/core/algorithm/block.rs.
-- Record: the byte BLOCK, the fingerprint of the limit, the end I7, and the length in milliseconds I4, so that an edit of the limit
-- changes no block that runs. Blocks are before all other records. So the short way, which expects another record there, leaves a
-- state with a block to the general way; a denial that may begin one, too.

--{ block_limits
-- Of a plan that has blocks: how long each limit blocks, behind the last one's numbers. 0 is for one that does not.
if has_blocks then
  for index = 1, count do
    local milliseconds
    milliseconds, at = unpack('<I4', request, at)
    limits[index].block = milliseconds > 0 and {
      fingerprint = pack('<B', BLOCK) .. limits[index].fingerprint, window = limits[index].window,
      calendar = limits[index].calendar, milliseconds = milliseconds,
    }
  end
  limits.has_blocks = true
end
--}

--{ block_rule
-- The rule for records of blocks, as those of algorithms are.
local block_rule = {}

function block_rule.size()
  return 11
end

function block_rule.fresh_at(value, at)
  return (unpack('<I7I4', value, at))
end

local function rule_of_record(fingerprint)
  return byte(fingerprint) == BLOCK and block_rule or rule_of(byte(fingerprint) % 8)
end
--}

--{ block_functions
-- How long the block of a limit runs yet, 0 if it does not; and whether a clock that stepped back left it for longer than it lasts.
local function block_left(block, records)
  local record = records[block.fingerprint]
  if not (record and record.text) then
    return 0, false
  end
  local ends, milliseconds = unpack('<I7I4', record.text, #block.fingerprint + 1)
  local left = max(ends - now, 0)
  return math.min(left, milliseconds * 1000), left > milliseconds * 1000
end

-- Adds the blocks to the states of limits. Returns whether the cost still fits. `begun` has those that began in the present joint
-- decision, by their fingerprints.
local function with_blocks(states, records, fits, begun)
  for _, state in ipairs(states) do
    local block = state.limit.block
    if block then
      state.left, state.is_ahead = block_left(block, records)
      if state.left == 0 and begun and begun[block.fingerprint] then
        state.left = begun[block.fingerprint].milliseconds * 1000
      end
      fits = fits and state.left == 0
    end
  end
  return fits
end

-- Begins the blocks of the limits that deny a request and are not blocked: adds them to `begun`, by their fingerprints.
local function begin_blocks(states, begun)
  for _, state in ipairs(states) do
    if state.left == 0 and state.denies then
      local block = state.limit.block
      begun[block.fingerprint] = block
      state.left, state.begins = block.milliseconds * 1000, true
    end
  end
end

-- Adds begun blocks to the records of a group.
local function set_blocks(group, begun)
  for fingerprint, block in pairs(begun) do
    local text = fingerprint .. pack('<I7I4', now + block.milliseconds * 1000, block.milliseconds)
    set_record(group.records, block, text)
    group.is_changed = true
  end
end

-- After a charge. One that is denied begins blocks, and has those that lie ahead end as they are read. One that fits drops those
-- that have ended, which join() does.
local function write_blocks(group, states, fits)
  for _, state in ipairs(states) do
    if fits and state.limit.block and group.records[state.limit.block.fingerprint] then
      group.is_changed, group.is_charged = true, true
    elseif state.is_ahead then
      local record = group.records[state.limit.block.fingerprint]
      record.text = sub(record.text, 1, -12) .. pack('<I7', now + state.left) .. sub(record.text, -4)
      group.is_changed = true
    end
  end
  if not fits then
    local begun = {}
    begin_blocks(states, begun)
    set_blocks(group, begun)
  end
end

-- The reply to a request: whether it fits, and these readings; while a block runs, also how long that of each limit does, with 128
-- added to the last byte where the request began it.
local function reply_of(fits, states, readings)
  local runs = false
  if not states.have_blocks then
    return (fits and '1' or '0') .. readings
  end
  for _, state in ipairs(states) do
    runs = runs or state.left and state.left > 0
  end
  if not runs then
    return (fits and '1' or '0') .. readings
  end
  for _, state in ipairs(states) do
    readings = readings .. pack('<I6B', state.left or 0, state.begins and 128 or 0)
  end
  return (fits and '3' or '2') .. readings
end
--}
