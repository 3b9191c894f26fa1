-- Refunds: per kind, as decide.lua numbers them, a function that takes the newest units back from a state as the rule's view
-- gives it: limit, first, second, third, cost. Twins of `refund` in src/algorithm/*.rs.
-- Result: whether anything was taken back, whether anything is left, and what is left as a state.
-- Made only where a call needs them.
local function make_refunds()
  local RUN = 12

  local function fixed(_, start, count, _, cost)
    return count > 0, count > cost, start, count - cost, 0
  end

  local function bucket(_, backlog, emission, quota, cost)
    local left = backlog - cost * emission
    return backlog > 0, left > 0, left, emission, quota
  end

  local function counter(_, start, current, previous, cost)
    local of_current = math.min(cost, current)
    local left = math.max(previous - (cost - of_current), 0)
    return current + previous > 0, current - of_current + left > 0, start, current - of_current, left
  end

  local function runs(_, packed, used, _, cost)
    if used <= cost then
      return used > 0, false
    end
    local units = cost
    while units > 0 do
      local taken, more = unpack('<I7I5', packed, #packed - RUN + 1)
      packed = sub(packed, 1, #packed - RUN)
      if more > units then
        packed = packed .. pack('<I7I5', taken, more - units)
      end
      units = units - math.min(more, units)
    end
    return true, true, packed, used - cost, 0
  end

  -- A log is written here; its expiry by the rule's save.
  local function log(limit, state, _, _, cost)
    if state.used == 0 then
      return false
    elseif state.used <= cost then
      limit.rule.drop(limit, state)
      return true, false
    end
    limit.rule.take_back(state, cost)
    return true, true, state, 0, 0
  end

  return { [0] = fixed, fixed, bucket, counter, runs, runs, log, bucket }
end
