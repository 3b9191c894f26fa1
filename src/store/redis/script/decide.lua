-- The groups in their order, and the reply.

-- Of the group whose turn it is: its keys, how many that look like it follow, itself included, where its requests begin and
-- where the next group does.
local next_packed, next_log, repeats, first_at, next_at = 1, packed + 1, 0, nil, groups_at
local n, has_packed, logs, alike
-- How many limits it has, if it is one charge under limits whose shapes are one byte. The limit whose turn it is: when its
-- states go, and its emission interval or the length of its cells, among others. All of them, where there are several.
local limits, cost
local kind, precision, limit_head, window, quota, burst, unit, step
local several
-- Formats of records by how many bytes a count takes, made when they are needed.
local fixed, counter
local general

while groups > 0 or repeats > 0 do
  if repeats == 0 then
    n, has_packed, logs, alike, repeats, first_at = unpack('<I2BBBB', request, next_at)
    groups, next_at, limits = groups - repeats, first_at + 7 * n, nil
    if n == 1 and alike == 1 and logs == 0 then
      local plan, mode
      plan, mode, cost = unpack('<BBI5', request, first_at)
      local place = plan_at[plan]
      limits = mode == 1 and byte(request, place)
      several = limits and limits > 1 and {}
      for index = 1, limits or 0 do
        local size
        kind, precision, size, limit_head, window, quota, burst = unpack('<BBBBI7I7I7', request, place + 25 * index - 24)
        if size ~= 1 then
          limits = nil
          break
        end
        unit, step = expiry_unit(window), math.ceil(window / (kind == 4 and precision or quota))
        if several then
          several[index] = { kind, precision, limit_head, window, quota, burst, unit, step }
        end
      end
    end
  end

  -- The quick ways, a block for each algorithm: of each limit, whose record must begin where the one before it ended, what it
  -- answers, and where it grants that, the record after it, when that is fresh, and when the one before it was. The reply is
  -- left out, and nothing done, where the state is another, where what it needs is rare, and where one of several limits
  -- denies. Each block says in one go what its rule says in steps.
  local value = values[next_packed]
  local reply, after, expires, expired, from = nil, nil, nil, nil, 1
  for index = 1, limits or 0 do
    if several then
      kind, precision, limit_head, window, quota, burst, unit, step = table_unpack(several[index])
    end
    local answer, record, fresh_at, before
    if kind > 4 then
      record = nil
--> quick
    end
    if not record then
      reply, after = limits == 1 and answer, nil
      break
    end
    fresh_at, before = fresh_at - fresh_at % unit + unit, before and before - before % unit + unit
    if index == 1 then
      reply, after, expires, expired = answer, record, fresh_at, before
    else
      reply, after, expires = reply .. sub(answer, 2), after .. record, math.max(expires, fresh_at)
      expired = before and math.max(expired, before)
    end
  end
  if after and value and from <= #value then
    reply, after = nil, nil
  end

  local problem, last = nil, settled + 1
  if after then
    problem = write(keys[next_packed], value, after, expires, expired)
  elseif not reply then
    general, last = general or make_general(), settled + n
    local key = has_packed == 1 and keys[next_packed]
    local decided, why = pcall(general, key, key and value, next_log, next_log + logs - 1, alike == 1, first_at, n)
    problem = not decided and (type(why) == 'table' and why.err or tostring(why))
  end
  if problem then
    for _, word in ipairs({ 'READONLY', 'NOREPLICAS' }) do
      if string.find(problem, word, 1, true) then
        -- Nobody can be charged here, and nobody was: the client must look for the node that may write.
        return { err = word .. ' this node may not write' }
      end
    end
    -- Requests of many callers share this call: a group that cannot be decided must not fail those after it.
    local text = sub(problem, 1, 200)
    for index = settled + 1, last do
      replies[index] = 'E' .. pack('<I2', #text) .. text
    end
    settled = last
  elseif reply then
    settled = last
    replies[settled] = reply
  end
  next_packed, next_log, repeats = next_packed + has_packed, next_log + logs, repeats - 1
end
return table.concat(replies)
