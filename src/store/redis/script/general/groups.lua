-- Decides the group whose turn it is, whatever it holds. The last chunk of make_general(); its first are the rules.

local ANCHORED, OTHER_PRECISION, LOG, BUCKET = 1, 5, 6, 7
local KINDS = {
  [0] = fixed_window, fixed_window, gcra_old, sliding_counter, sliding_window, sliding_window, sliding_log, gcra,
}
local rules = {}
-- Where in the request the next member of the group begins.
local at

local function rule_of(kind)
  local rule = rules[kind]
  if not rule then
    rule = KINDS[kind]()
    rule.reading_format, rule.answer_format = '<' .. rule.numbers, '<B' .. rule.numbers
    rules[kind] = rule
  end
  return rule
end

local plans = {}

-- The limits of a plan.
local function limits_of(plan)
  local limits, place = plans[plan], plan_at[plan]
  if limits then
    return limits
  end
  if not place then
    error('tollgate: a request is of no plan of its call', 0)
  end
  limits = {}
  plans[plan] = limits
  local n = byte(request, place)
  place = place + 1
  for index = 1, n do
    local kind, precision, shape, window, quota, burst
    kind, precision, shape, window, quota, burst, place = unpack('<BBBc0I7I7I7', request, place)
    if kind == BUCKET then
      -- The rest of the prefix is the rate.
      shape = sub(shape, 1, byte(shape) >= 248 and 5 or 1)
    end
    local emission = math.ceil(window / quota)
    limits[index] = {
      rule = rule_of(kind), shape = shape, head = byte(shape), window = window, unit = expiry_unit(window), quota = quota,
      emission = emission, burst = burst,
      anchored = kind == ANCHORED, is_log = kind == LOG, is_indexed = kind == LOG and #shape > 1,
      old_shape = kind == BUCKET and pack('<B', byte(shape) - 5) .. sub(shape, 2),
      precision = precision, cell = math.ceil(window / math.max(precision, 1)),
    }
  end
  return limits
end

local function check_mode(mode, most)
  if mode > most then
    error('tollgate: a request has an unknown mode', 0)
  end
end

-- Whether a packed state is one record of this limit.
local function is_alone(value, limit)
  local shape = limit.shape
  return byte(value) == limit.head
    and limit.rule.size(value, #shape + 1) == #value - #shape
    and (#shape == 1 or sub(value, 1, #shape) == shape)
end

-- Requests of one plan with one limit, whose state is that limit's alone, or none.
local function decide_alike(key, value, limit, n)
  local rule, fits = limit.rule, nil
  local first, second, third, clamped, fresh_at = rule.view(value, #limit.shape + 1, limit)
  local dirty = false
  for index = settled + 1, settled + n do
    local _, mode, cost
    _, mode, cost, at = unpack('<BBI5', request, at)
    check_mode(mode, 1)
    fits = rule.fits(limit, first, second, third, cost)
    local charged = fits and mode == 1
    if charged then
      first, second, third = rule.charge(limit, first, second, third, cost)
      dirty = true
    elseif mode == 1 then
      dirty = dirty or clamped
    elseif key and not value then
      call('GET', key)
    end
    replies[index] = pack(rule.answer_format, fits and 49 or 48, rule.reading(limit, first, second, third, cost, charged))
  end
  if dirty then
    local unit = limit.unit
    local expired = fresh_at and expiry(fresh_at, unit)
    local payload
    payload, fresh_at = rule.save(limit, first, second, third)
    if payload then
      put(key, value, limit.shape .. payload, expiry(fresh_at, unit), expired)
    end
  end
  settled = settled + n
end

-- Requests of one plan with several limits, whose state is those limits' in their order, or none. False, and nothing done,
-- when it is not, or when a clock stepped back.
local function decide_several(key, value, limits, n)
  local first, second, third, position, expired = {}, {}, {}, 1, 0
  for index, limit in ipairs(limits) do
    local rule, shape, clamped, fresh_at = limit.rule, limit.shape, nil, nil
    if value and sub(value, position, position + #shape - 1) ~= shape then
      return false
    end
    position = position + #shape
    first[index], second[index], third[index], clamped, fresh_at = rule.view(value, position, limit)
    if clamped then
      return false
    elseif value then
      expired = math.max(expired, expiry(fresh_at, limit.unit))
      position = position + rule.size(value, position)
    end
  end
  if value and position <= #value then
    return false
  end
  local dirty = false
  for row = settled + 1, settled + n do
    local _, mode, cost
    _, mode, cost, at = unpack('<BBI5', request, at)
    check_mode(mode, 1)
    local fits, parts = true, {}
    for index, limit in ipairs(limits) do
      fits = fits and limit.rule.fits(limit, first[index], second[index], third[index], cost)
    end
    local charged = fits and mode == 1
    if mode == 0 and not value then
      call('GET', key)
    end
    dirty = dirty or charged
    for index, limit in ipairs(limits) do
      local rule, a, b, c = limit.rule, first[index], second[index], third[index]
      if charged then
        a, b, c = rule.charge(limit, a, b, c, cost)
        first[index], second[index], third[index] = a, b, c
      end
      parts[index] = pack(rule.reading_format, rule.reading(limit, a, b, c, cost, charged))
    end
    replies[row] = (fits and '1' or '0') .. table.concat(parts)
  end
  if dirty then
    local records, last = {}, 0
    for index, limit in ipairs(limits) do
      local payload, fresh_at = limit.rule.save(limit, first[index], second[index], third[index])
      records[index] = limit.shape .. payload
      last = math.max(last, expiry(fresh_at, limit.unit))
    end
    put(key, value, table.concat(records), last, expired)
  end
  settled = settled + n
  return true
end

-- Everything else; made only where a call needs it.
local function make_decide_mixed()
  local function shape_at(value, position)
    local head = byte(value, position)
    local kind, size = head % 8, 0
    if kind == LOG then
      error('tollgate: state of an unknown shape, head ' .. head)
    elseif kind == OTHER_PRECISION then
      size = size + 1
    end
    if head >= 248 then
      size = size + 4
    end
    return sub(value, position, position + size), rule_of(kind)
  end

  local function window_of(shape)
    local place = floor(byte(shape) / 8)
    if place < 31 then
      return common_windows()[place + 1]
    end
    local code = unpack('<I4', shape, #shape - 3)
    if code >= 2147483648 then
      return (code - 2147483648) * 1000000
    end
    return code * 1000
  end

  -- The records of a packed state in their order, and by shape.
  local function parse_records(value)
    local records, position = {}, 1
    while position <= #value do
      local shape, rule = shape_at(value, position)
      local payload = position + #shape
      local record = { shape = shape, rule = rule, at = payload }
      position = payload + rule.size(value, payload)
      record.text = sub(value, payload - #shape, position - 1)
      records[#records + 1] = record
      records[shape] = record
    end
    return records
  end

  -- Reads what a limit needs.
  local function look(limit, value, records, logs)
    local state = { limit = limit }
    local record = records[limit.shape]
    if not record and limit.old_shape and records[limit.old_shape] then
      -- It is the limit's from now on, and saved as such when that is dirty.
      record = records[limit.old_shape]
      records[limit.shape] = record
    end
    if limit.is_log then
      limit.log, limit.index = logs[limit.window], limit.is_indexed and logs.index
    end
    state.first, state.second, state.third, state.clamped =
      (record and record.rule or limit.rule).view(record and value, record and record.at, limit)
    return state
  end

  -- Shapes have the order of these numbers.
  local function order_of(shape)
    return (unpack('>I6', shape .. '\0\0\0\0\0'))
  end

  local function in_order(a, b)
    return order_of(a.shape) < order_of(b.shape)
  end

  -- The packed state anew: records of dirty states are saved, the others kept as they are; a charge drops those that are
  -- fresh, a refund those of which nothing is left.
  local function join(value, records, states, charged)
    for _, state in ipairs(states) do
      local limit = state.limit
      if state.dirty and not limit.is_log then
        local record = records[limit.shape]
        if not record then
          record = { shape = limit.shape }
          records[#records + 1] = record
        end
        if state.emptied then
          record.text = nil
        else
          local payload
          payload, record.fresh_at = limit.rule.save(limit, state.first, state.second, state.third)
          record.shape, record.text = limit.shape, limit.shape .. payload
        end
      end
    end
    table.sort(records, in_order)
    local parts, last = {}, 0
    for _, record in ipairs(records) do
      local window = window_of(record.shape)
      local fresh_at = record.fresh_at or record.rule.fresh_at(value, record.at, window)
      if record.text and (fresh_at > now or not charged) then
        parts[#parts + 1] = record.text
        last = math.max(last, expiry(fresh_at, expiry_unit(window)))
      end
    end
    return table.concat(parts), last
  end

  local function charge(state, fits, cost)
    if fits then
      state.first, state.second, state.third =
        state.limit.rule.charge(state.limit, state.first, state.second, state.third, cost)
    end
    state.dirty = fits or state.clamped
  end

  local refunds

  local function refund(state, _, cost)
    local limit = state.limit
    refunds = refunds or make_refunds()
    local taken, left, first, second, third =
      refunds[limit.head % 8](limit, state.first, state.second, state.third, cost)
    state.dirty, state.emptied = taken, not left
    if taken and left then
      state.first, state.second, state.third = first, second, third
    elseif taken then
      state.first, state.second, state.third = limit.rule.view(nil, nil, limit)
    end
  end

  -- Changes every state, by charge or refund, and saves what that made dirty; the packed state after it. It goes first, since
  -- only its writing can fail.
  local function commit(key, value, records, states, change, fits, cost)
    local dirty, logs = false, {}
    for _, state in ipairs(states) do
      if state.limit.is_log then
        logs[#logs + 1] = state
        if change == charge and (fits or state.clamped) then
          state.limit.rule.list(state.limit, state.first, now)
        end
      else
        change(state, fits, cost)
        dirty = dirty or state.dirty
      end
    end
    local after = value
    if dirty then
      local expires
      after, expires = join(value, records, states, fits)
      if after == '' then
        after = false
        call('DEL', key)
      else
        put(key, value, after, expires)
      end
    end
    for _, state in ipairs(logs) do
      change(state, fits, cost)
      if state.dirty and not state.emptied then
        state.limit.rule.save(state.limit, state.first)
      end
    end
    return after
  end

  -- A reading per limit, packed.
  local function readings(states, cost, charged)
    local parts = {}
    for index, state in ipairs(states) do
      local limit = state.limit
      parts[index] = pack(limit.rule.reading_format,
        limit.rule.reading(limit, state.first, state.second, state.third, cost, charged))
    end
    return table.concat(parts)
  end

  local function decide_one(key, value, logs)
    local plan, mode, cost
    plan, mode, cost, at = unpack('<BBI5', request, at)
    check_mode(mode, 2)
    if key and mode ~= 1 and not value then
      call('GET', key)
    end
    local records, states, fits = parse_records(value or ''), {}, true
    for index, limit in ipairs(limits_of(plan)) do
      local state = look(limit, value, records, logs)
      states[index] = state
      fits = limit.rule.fits(limit, state.first, state.second, state.third, cost) and fits
    end
    local before = ''
    if mode == 1 then
      value = commit(key, value, records, states, charge, fits, cost)
    elseif mode == 2 then
      before = readings(states, 0, false)
      value = commit(key, value, records, states, refund, false, cost)
      fits, cost = true, 0
    end
    replies[settled + 1] = (fits and '1' or '0') .. readings(states, cost, fits and mode == 1) .. before
    settled = settled + 1
    return value
  end

  return function(key, value, logs, n)
    for _ = 1, n do
      value = decide_one(key, value, logs)
    end
  end
end

local decide_mixed

-- Names of logs by their window, which stands at their end, and of their index, which is the last if there is one.
local function logs_by_window(first, last)
  local logs = {}
  for place = first, last do
    local window = string.match(keys[place], '}log:(%d+)$')
    logs[window and tonumber(window) or 'index'] = keys[place]
  end
  return logs
end

return function(key, value, first_log, last_log, alike, place, n)
  at = place
  if alike then
    local limits = limits_of(byte(request, at))
    local limit = limits[1]
    if limits[2] then
      if decide_several(key, value, limits, n) then
        return
      end
    elseif limit.is_log then
      limit.log, limit.index = keys[first_log], limit.is_indexed and keys[last_log]
      return decide_alike(nil, nil, limit, n)
    elseif not value or is_alone(value, limit) then
      return decide_alike(key, value, limit, n)
    end
  end
  decide_mixed = decide_mixed or make_decide_mixed()
  return decide_mixed(key, value, logs_by_window(first_log, last_log), n)
end
