-- Decides the most common groups: one request for a name, under limits whose prefix is one number (group.lua). Under several
-- limits, only a charge that fits is decided here.

while may_use_names and repeats > 0 do
--{ names
  -- `from` is where the next record begins in the state. `last_number` is the index in `numbers` of this reply's last so far.
  -- The reply's first number tells whether the cost fits.
  local value, from, last_number, index = values[next_packed], 1, number_count + 1, 1
  local fits, record, fresh_at, before, after, expires, expired
  rings, length, may_merge = false, value and #value, true
  repeat
    if several then
      kind, precision, prefix, limit_head, window, quota, burst, unit, step, bucket, bucket_end, calendar = table_unpack(several[index])
      fits, index = nil, index + 1
    end
    if kind == SLIDING_LOG then
      break
--> decide
    end
    if fits and charges then
      fresh_at = fresh_at - fresh_at % unit + unit
      if before then
        before = before - before % unit + unit
      end
      if several then
        record, expires, expired = (after or '') .. record, max(expires or 0, fresh_at), before and max(expired or 0, before)
        after = record
      end
    end
  until not several or not fits or index > limits
  if several then
    if fits then
      fresh_at, before = expires, expired
    end
    if value and from <= #value and byte(value, from) == RINGS then
      rings, length = true, nil
    end
  end
  if fits and charges and (rings and #record == from - 1 or not (value and from <= #value)) then
    numbers[number_count + 1] = 49
--> store
  elseif fits ~= nil and not several and not (charges and (fits or has_blocks)) then
    numbers[number_count + 1] = fits and 49 or 48
    if not (charges or value) then
--> check_type
    end
  else
    denied = fits == false
    break
  end
  if problem then
    break
  end
  number_count = last_number
  next_packed = next_packed + 1
  repeats = repeats - 1
  answers = answers + 1
--}
end

--{ store
if fresh_at == before and #record == from - 1 then
  -- Most charges come here, so this does by itself what write() would do.
  local reply = try('SETRANGE', keys[next_packed], '0', record)
  if reply ~= length and type(reply) == 'table' then
    problem = reply.err
  end
else
--> write
  problem = write(keys[next_packed], value, record, fresh_at, before, rings)
end
--}

--{ check_type
-- MGET reads a key of another type as if it were absent. A charge of such a key fails when it writes; a peek fails here.
local reply = try('GET', keys[next_packed])
problem = type(reply) == 'table' and reply.err
--}
