-- The groups in their order, and the reply.

-- Of the group whose turn it is: its keys, how many that look like it follow, itself included, where its requests begin and
-- where the next group does.
local next_packed, next_log, repeats, first_at, next_at = 1, packed + 1, 0, nil, groups_at
local n, has_packed, logs, alike
-- Its limit, if it is one charge under one limit whose shape is one byte; else no kind.
local kind, precision, limit_head, window, quota, burst, cost
-- What follows from the limit.
local unit, emission, cell
local general

while groups > 0 or repeats > 0 do
  if repeats == 0 then
    n, has_packed, logs, alike, repeats, first_at = unpack('<I2BBBB', request, next_at)
    groups, next_at, kind = groups - repeats, first_at + 7 * n, nil
    if n == 1 and alike == 1 and logs == 0 then
      local plan, mode
      plan, mode, cost = unpack('<BBI5', request, first_at)
      local limits, _, _, size = byte(request, plan_at[plan], plan_at[plan] + 3)
      if mode == 1 and limits == 1 and size == 1 then
        kind, precision, limit_head, window, quota, burst = unpack('<BBxBI7I7I7', request, plan_at[plan] + 1)
        unit, emission, cell = expiry_unit(window), math.ceil(window / quota), math.ceil(window / math.max(precision, 1))
      end
    end
  end

  -- The quick ways, a block for each algorithm, for a name whose state is its limit's alone, or that has none: the reply,
  -- and where it is granted the state after it, when that is fresh, and when the one before it was. No reply, and nothing
  -- done, where the state is another, or what it needs is rare. Each says in one go what its rule says in steps.
  local value = values[next_packed]
  local reply, after, fresh_at, before
  if not kind then
    reply = nil
--> quick
  end

  local problem, last = nil, settled + 1
  if after then
    local expired = before and before - before % unit + unit
    problem = write(keys[next_packed], value, after, fresh_at - fresh_at % unit + unit, expired)
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
