-- Decides requests, each over all limits of its plan, all or nothing, one after another in their order.
--
-- KEYS  per request: the name of its packed state, if it has limits with one, then the name of each log, in the order of
--       its limits. All keys of one request carry the same hash tag.
-- ARGV  per request one packed string: mode B (1 charge, 0 peek), cost I5, keys B (how many of KEYS are its), n B, then
--       n limits of shape (5 bytes: tag B, window code I4), window I7, quota I7, burst I7. Whole numbers, microseconds.
-- Reply one string, per request: '1' or '0' (whether the cost fits), then n readings of three I7, see each algorithm; or
--       'E' and an error as length I2 and text, when its state cannot be read: it is not ours, or a newer version's.
--
-- Packed state: records of shape (5 bytes) and that algorithm's payload. A limit finds its record by its shape, so adding,
-- removing or reordering limits resets no other's usage. Records of other limits are kept until they are fresh.
-- Invariants: a peek writes nothing; a denial writes only a clamp; every key written gets an expiry, which only collects
-- garbage: what counts is read from the value and the clock.

local PACKED_LIMIT = 26

local FACTORIES = {
  [1] = function() return fixed_window(false) end,
  [2] = function() return fixed_window(true) end,
  [3] = gcra,
  [4] = sliding_counter,
  [5] = sliding_log,
}
local made = {}

local function algorithm(tag)
  local found = made[tag]
  if not found then
    if FACTORIES[tag] then
      found = FACTORIES[tag]()
    elseif tag > 128 and tag <= 192 then
      found = sliding_window(tag - 128)
    else
      error('tollgate: state of an unknown shape, tag ' .. tag)
    end
    made[tag] = found
  end
  return found
end

local function window_of(shape)
  local code = struct.unpack('<I4', shape, 2)
  if code >= 2147483648 then
    return (code - 2147483648) * 1000000
  end
  return code * 1000
end

-- Where each shape's payload begins in a packed state, and the shapes in their order.
local function index_records(value)
  local at, order, position = {}, {}, 1
  while position <= #value do
    local shape = string.sub(value, position, position + 4)
    at[shape] = position + 5
    order[#order + 1] = shape
    position = position + 5 + algorithm(string.byte(shape)).size(value, position + 5)
  end
  return at, order
end

local function parse_limits(item, n, first_key)
  local limits, key, packed_key = {}, first_key, nil
  for index = 1, n do
    local at = 9 + PACKED_LIMIT * (index - 1)
    local limit = { shape = string.sub(item, at, at + 4), rule = algorithm(string.byte(item, at)) }
    limit.window, limit.quota, limit.burst = struct.unpack('<I7I7I7', item, at + 5)
    limit.emission = math.ceil(limit.window / limit.quota)
    limit.tolerance = limit.burst * limit.emission
    if not limit.rule.own_key and not packed_key then
      packed_key = KEYS[key]
      key = key + 1
    end
    limits[index] = limit
  end
  for index = 1, n do
    if limits[index].rule.own_key then
      limits[index].key = KEYS[key]
      key = key + 1
    end
  end
  return limits, packed_key
end

-- The packed state anew: changed records are saved, the others kept as they are; a charge drops those that are fresh.
local function save_packed(packed_key, value, at, order, limits, fits)
  local mine, parts, last = {}, {}, 0
  for _, limit in ipairs(limits) do
    if not limit.rule.own_key then
      mine[limit.shape] = limit
      if not at[limit.shape] and limit.charged then
        order[#order + 1] = limit.shape
      end
    end
  end
  for _, shape in ipairs(order) do
    local limit, payload, fresh_at = mine[shape], nil, nil
    if limit and (limit.charged or limit.state.clamped) then
      payload, fresh_at = limit.rule.save(limit.state, limit)
    else
      local rule = algorithm(string.byte(shape))
      payload = string.sub(value, at[shape], at[shape] + rule.size(value, at[shape]) - 1)
      fresh_at = rule.fresh_at(value, at[shape], window_of(shape))
    end
    if fresh_at > now or not fits then
      parts[#parts + 1] = shape .. payload
      last = math.max(last, fresh_at)
    end
  end
  redis.call('SET', packed_key, table.concat(parts), 'PXAT', expiry(last))
end

local function write(packed_key, value, at, order, limits, fits)
  local dirty = false
  for _, limit in ipairs(limits) do
    if fits then
      limit.rule.charge(limit.state, limit, limit.cost)
      limit.charged = true
    end
    if limit.charged or limit.state.clamped then
      if limit.rule.own_key then
        limit.rule.save(limit.state, limit)
      else
        dirty = true
      end
    end
  end
  if dirty then
    save_packed(packed_key, value, at, order, limits, fits)
  end
end

-- Reads all that a request needs. Fails on a state that is not ours; nothing is written yet then.
local function look(item, cost, n, first_key)
  local limits, packed_key = parse_limits(item, n, first_key)
  local value = packed_key and redis.call('GET', packed_key) or ''
  local at, order = index_records(value)
  local fits = true
  for _, limit in ipairs(limits) do
    limit.cost = cost
    if limit.rule.own_key then
      limit.state = limit.rule.view(limit)
    else
      limit.state = limit.rule.view(value, at[limit.shape], limit)
    end
    fits = fits and limit.rule.fits(limit.state, limit, cost)
  end
  return limits, fits, packed_key, value, at, order
end

local function refuse(problem)
  local text = type(problem) == 'table' and problem.err or tostring(problem)
  text = string.sub(text, 1, 200)
  return 'E' .. struct.pack('<I2', #text) .. text
end

local function decide(item, first_key)
  local mode, cost, keys, n = struct.unpack('<BI5BB', item)
  local next_key = first_key + keys
  -- Requests of many callers share this call: one that cannot be decided must not fail the others.
  local read, limits, fits, packed_key, value, at, order = pcall(look, item, cost, n, first_key)
  if not read then
    return refuse(limits), next_key
  end
  if mode == 1 then
    write(packed_key, value, at, order, limits, fits)
  end
  local reply = { fits and '1' or '0' }
  for index, limit in ipairs(limits) do
    reply[index + 1] = struct.pack('<I7I7I7', limit.rule.reading(limit.state, limit, cost, limit.charged))
  end
  return table.concat(reply), next_key
end

local replies, next_key = {}, 1
for index = 1, items do
  replies[index], next_key = decide(ARGV[index], next_key)
end
return table.concat(replies)
