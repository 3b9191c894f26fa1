-- Decides the most common groups: one request for a name, under limits whose prefix is one number (group.lua). Under several
-- limits, only a charge that fits is decided here.

while plain and repeats > 0 do
--{ names
  -- `from` is where the next record begins in the state. `last_number` is the index in `numbers` of this reply's last so far.
  -- The reply's first number tells whether the cost fits.
  local value, from, last_number, index = values[next_packed], 1, filled + 1, 1
  local fits, record, fresh_at, before, after, expires, expired
  -- Where the bytes between two parts of a record stay as they are, a rule may give `record` and, from the offset `tail_at` on,
  -- `tail`. Of `parts`, so many are written before the last one. `at` is the last one's offset, also as a text.
  local may_split, tail, tail_at, parted, at, at_text = true, nil, nil, 0, 0, '0'
  repeat
    if several then
      may_split = at + (after and #after or 0) == from - 1
      kind, precision, prefix, limit_head, window, quota, burst, unit, step, bucket, bucket_end = table_unpack(several[index])
      fits, index = nil, index + 1
    end
    if kind > 7 then
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
        after = tail or record
      end
      if tail then
--> split
      end
    end
  until not several or not fits or index > limits
  if fits and several then
    fresh_at, before = expires, expired
  end
  if fits and charges and not (value and from <= #value) then
    numbers[filled + 1] = 49
--> store
  elseif fits ~= nil and not several and not (fits and charges) then
    numbers[filled + 1] = fits and 49 or 48
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
  filled = last_number
  next_packed = next_packed + 1
  repeats = repeats - 1
  answers = answers + 1
--}
end

--{ store
if fresh_at == before and at + #record == #value then
  -- Most charges come here, so this does by itself what write() would do.
  local length = try('SETRANGE', keys[next_packed], at_text, record)
  if length ~= #value then
    problem = length.err
  elseif parted > 0 then
    -- What would refuse one of these has refused the first.
    for part = 1, parted, 2 do
      try('SETRANGE', keys[next_packed], parts[part], parts[part + 1])
    end
  end
else
  if parted > 0 then
--> join
  end
--> write
  problem = write(keys[next_packed], value, record, fresh_at, before)
end
--}

--{ split
-- What is known so far is one part, and the tail begins the next one.
parts[parted + 1], parts[parted + 2], parted = at_text, record, parted + 2
offsets[tail_at] = offsets[tail_at] or tostring(tail_at)
record, tail, at, at_text = tail, nil, tail_at, offsets[tail_at]
--}

--{ join
-- All parts and what is between them, as one text.
local whole = ''
for part = 2, parted, 2 do
  whole = whole .. parts[part]
  whole = whole .. sub(value, #whole + 1, part < parted and tonumber(parts[part + 1]) or at)
end
record = whole .. record
--}

--{ check_type
-- MGET reads a key of another type as if it were absent. A charge of such a key fails when it writes; a peek fails here.
local reply = try('GET', keys[next_packed])
problem = type(reply) == 'table' and reply.err
--}
