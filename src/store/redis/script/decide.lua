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
-- Replies of names that look alike, as numbers, which are packed in one go: of how many names, and numbers in all.
local numbers, names, filled = {}, 0, 0
-- Formats of records by how many bytes a count takes, made when they are needed.
local fixed, counter
local general

while groups > 0 or repeats > 0 do
  if repeats == 0 then
    n, has_packed, logs, alike, repeats, first_at = unpack('<I2BBBB', request, next_at)
    groups, next_at, limits = groups - repeats, first_at + 7 * n, nil
    if n == 0 or repeats == 0 or groups < 0 or next_at > #request + 1
      or next_packed + has_packed * repeats > packed + 1 or next_log + logs * repeats > #keys + 1 then
      return { err = MALFORMED }
    end
    if n == 1 and alike == 1 and logs == 0 then
      local plan, mode
      plan, mode, cost = unpack('<BBI5', request, first_at)
      local place = plan_at[plan]
      limits = mode == 1 and place and byte(request, place)
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

  -- The quick ways, a block for each algorithm: of each limit, whose record must begin where the one before it ended, whether
  -- it fits, what it answers, and where it fits, the record after it, when that is fresh, and when the one before it was. It
  -- fits neither way, and nothing is done, where the state is another and where what it needs is rare; so it is where one of
  -- several limits denies. Each block says in one go what its rule says in steps.
  local problem
  while limits and repeats > 0 do
    -- From where in the state the next record is, and the place of the last number of this reply; its first tells whether it
    -- fits.
    local value, from, place, index = values[next_packed], 1, filled + 1, 1
    local fits, record, fresh_at, before, after, expires, expired
    repeat
      if several then
        kind, precision, limit_head, window, quota, burst, unit, step = table_unpack(several[index])
        fits, index = nil, index + 1
      end
      if kind > 4 then
        break
--> quick
      end
      if fits then
        fresh_at = fresh_at - fresh_at % unit + unit
        if before then
          before = before - before % unit + unit
        end
        if several then
          after, expires, expired = (after or '') .. record, max(expires or 0, fresh_at), before and max(expired or 0, before)
        end
      end
    until not several or not fits or index > limits
    if fits and several then
      record, fresh_at, before = after, expires, expired
    end
    if fits and not (value and from <= #value) then
      numbers[filled + 1] = 49
      if fresh_at == before and #record == #value then
        -- As write() does it: most charges come here.
        local length = try('SETRANGE', keys[next_packed], '0', record)
        if length ~= #record then
          problem = length.err
        end
      else
        problem = write(keys[next_packed], value, record, fresh_at, before)
      end
      if problem then
        break
      end
    elseif fits == false and not several then
      numbers[filled + 1] = 48
    else
      break
    end
    filled = place
    next_packed = next_packed + 1
    repeats = repeats - 1
    names = names + 1
  end
  if names > 0 then
    settled = settled + 1
    replies[settled] = pack('<' .. rep('B' .. rep('I7', filled / names - 1), names), table_unpack(numbers, 1, filled))
    names, filled = 0, 0
  end

  if repeats > 0 then
    local last = settled + 1
    if not problem then
      general, last = general or make_general(), settled + n
      local key = has_packed == 1 and keys[next_packed]
      local decided, why = pcall(general, key, key and values[next_packed], next_log, next_log + logs - 1, alike == 1, first_at, n)
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
    end
    next_packed, next_log, repeats = next_packed + has_packed, next_log + logs, repeats - 1
  end
end
if next_at <= #request or next_packed <= packed or next_log <= #keys then
  return { err = MALFORMED }
end
return table.concat(replies)
