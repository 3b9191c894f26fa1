-- The groups in their order, and the reply.

-- Of the group whose turn it is: its keys, how many that look like it follow, itself included, where its requests begin and
-- where the next group does.
local next_packed, next_log, repeats, first_at, next_at = 1, packed + 1, 0, nil, groups_at
local n, has_packed, logs, alike
-- How many limits its plan has, if the quick ways may be tried. The limit whose turn it is: its prefix, as all but the last byte,
-- if there are more, and the last (of a token_bucket, more of the last), its emission interval or the length of its cells, and
-- the format of a bucket's records and one less than their length, among others. All limits, where there are several.
local limits, plain, cost
local kind, precision, prefix, limit_head, window, quota, burst, unit, step, bucket, least
local several, charges
-- Replies of names that look alike, as numbers, which are packed in one go: to how many requests, and numbers in all.
local numbers, answers, filled = {}, 0, 0
-- Formats of records by how many bytes a count takes, made when they are needed.
local fixed, counter
local general

while groups > 0 or repeats > 0 do
  if repeats == 0 then
    n, has_packed, logs, alike, repeats, first_at = unpack('<I2BBBB', request, next_at)
    groups, next_at, limits, plain = groups - repeats, first_at + 7 * n, nil, nil
    if n == 0 or repeats == 0 or groups < 0 or next_at > #request + 1
      or next_packed + has_packed * repeats > packed + 1 or next_log + logs * repeats > #keys + 1 then
      return { err = MALFORMED }
    end
    if alike == 1 and logs == 0 then
      local plan, mode
      plan, mode, cost = unpack('<BBI5', request, first_at)
      local place = plan_at[plan]
      limits = mode == 1 and place and byte(request, place)
      several, place = limits and limits > 1 and {}, limits and place + 1
      plain = limits and n == 1
      for index = 1, limits or 0 do
        local size
        kind, precision, size = byte(request, place, place + 2)
        -- The last bytes of the prefix are read as one number, which is exact up to six.
        local last, numbers_of = 1, '<BI7I7I7'
        if kind == 7 then
          if size == 3 then
            last, bucket, numbers_of = 3, '<I3I7', '<I3I7I7I7'
          elseif size == 4 then
            last, bucket, numbers_of = 4, '<I4I7', '<I4I7I7I7'
          elseif size == 5 then
            last, bucket, numbers_of = 5, '<I5I7', '<I5I7I7I7'
          else
            last, bucket, numbers_of = 6, '<I6I7', '<I6I7I7I7'
          end
          least = last + 6
        end
        prefix, place = size > last and sub(request, place + 3, place + 2 + size - last), place + 3 + size
        limit_head, window, quota, burst, place = unpack(numbers_of, request, place - last)
        plain = plain and not prefix
        unit, step = expiry_unit(window), math.ceil(window / ((kind == 4 or kind == 5) and precision or quota))
        if several then
          several[index] = { kind, precision, prefix, limit_head, window, quota, burst, unit, step, bucket or false, least or 0 }
        end
      end
    end
  end

  -- The quick ways, a block for each algorithm: of each limit, whose record must begin where the one before it ended, whether
  -- it fits, what it answers, and where it fits, the record after it, when that is fresh, and when the one before it was. It
  -- fits neither way, and nothing is done for the name, where the state is another and where what it needs is rare. Each block
  -- says in one go what its rule says in steps.
  local problem, denied
  -- What most names are: one request, under limits whose prefixes are one byte, or of a bucket a few; and where there are several
  -- limits, it fits.
  charges = true
  while plain and repeats > 0 do
    -- From where in the state the next record is, and the place of the last number of this reply; its first tells whether it
    -- fits.
    local value, from, place, index = values[next_packed], 1, filled + 1, 1
    local fits, record, fresh_at, before, after, expires, expired
    repeat
      if several then
        kind, precision, prefix, limit_head, window, quota, burst, unit, step, bucket, least = table_unpack(several[index])
        fits, index = nil, index + 1
      end
      if kind > 7 then
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
      denied = fits == false
      break
    end
    filled = place
    next_packed = next_packed + 1
    repeats = repeats - 1
    answers = answers + 1
  end

  -- One name of those that are left: several requests, one after another, of which those that fit are written in one go; other
  -- prefixes; and where one of several limits denies, all of them as they stand.
  local undecided = repeats > 0
  while limits and undecided and not problem do
    -- The state, in Redis and after the requests until now; when it goes, where it was charged, and when the one in Redis does.
    local stored, expires, expired = values[next_packed], nil, nil
    -- The place of the last number of this reply, and how many of the name's requests are left.
    local value, place, left, request_at, fits = stored, filled, n, first_at, nil
    repeat
      if n > 1 then
        local mode
        fits, mode, cost, request_at = unpack('<BBI5', request, request_at)
        fits = nil
        if mode ~= 1 then
          break
        end
      end
      -- From where in the state the next record is, and the place of this reply's first number, which tells whether it fits.
      local from, first, index = 1, place + 1, 1
      local record, fresh_at, before, after, goes, went
      place, charges = first, not denied
      repeat
        if several then
          kind, precision, prefix, limit_head, window, quota, burst, unit, step, bucket, least = table_unpack(several[index])
          fits, index = nil, index + 1
        end
        if prefix then
          if value and sub(value, from, from + #prefix - 1) ~= prefix then
            break
          end
          from = from + #prefix
        end
        if kind > 7 then
          break
--> quick
        end
        if fits == false and several and charges then
          from, place, index, charges = 1, first, 1, false
        elseif fits and charges then
          fresh_at = fresh_at - fresh_at % unit + unit
          if before then
            before = before - before % unit + unit
          end
          if prefix then
            record = prefix .. record
          end
          if several then
            after, goes, went = (after or '') .. record, max(goes or 0, fresh_at), before and max(went or 0, before)
          end
        end
      until not several or fits == nil or index > limits
      if fits == nil then
        break
      elseif not (fits and charges) then
        numbers[first], fits = 48, false
      elseif value and from <= #value then
        fits = nil
        break
      else
        if several then
          record, fresh_at, before = after, goes, went
        end
        if not expires then
          expired = before
        end
        numbers[first], value, expires = 49, record, fresh_at
      end
      left = left - 1
    until left == 0
    if fits == nil then
      break
    elseif expires then
      problem = write(keys[next_packed], stored, value, expires, expired)
      if problem then
        break
      end
    end
    filled, answers, undecided = place, answers + n, false
    next_packed = next_packed + 1
    repeats = repeats - 1
  end
  if answers > 0 and (undecided or repeats == 0) then
    settled = settled + 1
    replies[settled] = pack('<' .. rep('B' .. rep('I7', filled / answers - 1), answers), table_unpack(numbers, 1, filled))
    answers, filled = 0, 0
  end

  if undecided then
    local last = settled + n
    if not problem then
      general = general or make_general()
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
