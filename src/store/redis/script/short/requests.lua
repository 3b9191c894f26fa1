-- Decides the groups that names.lua leaves, still the short way. These have several requests for a name, longer prefixes, or,
-- under several limits, a peek or a denial. Requests of one group are decided one after another, and the state is written once.

while limits and undecided and not problem do
--{ requests
  -- `stored` is the state in Redis. `expires` is when the state after the requests so far expires, nil without a charge;
  -- `expired` is when the one in Redis does.
  local stored, expires, expired = values[next_packed], nil, nil
  -- `value` is the state after the requests so far, of which `records` change. `last_number` is the index in `numbers` of this reply's last so far.
  -- `left` is how many of the name's requests are left.
  local value, records, last_number, left, request_at, fits = stored, nil, number_count, n, first_at, nil
  rings, length, may_merge = false, nil, false
  repeat
    if n > 1 then
      fits, mode, cost, request_at = unpack('<BBI5', request, request_at)
      fits = nil
      if mode > 1 then
        break
      end
    end
    -- `from` is where the next record begins in the state. `first` is the index of this reply's first number, which tells
    -- whether the cost fits.
    local from, first, index, all_fit = 1, last_number + 1, 1, true
    local record, fresh_at, before, after, latest_fresh_at, latest_before
    last_number, charges = first, mode == 1 and not denied
    if mode == 0 and not value then
--> check_type
      if problem then
        break
      end
    end
--> request
    if fits == nil or has_blocks and mode == 1 and not all_fit then
      fits = nil
      break
    elseif not (fits and charges) then
      numbers[first], fits = all_fit and 49 or 48, false
    else
      local rest = value and from <= #value and sub(value, from) or ''
      rings = rings or several and byte(rest) == RINGS
      if several then
        record, fresh_at, before = after, latest_fresh_at, latest_before
      end
      if rings and #record ~= from - 1 or not rings and rest ~= '' then
        fits = nil
        break
      end
      if not expires then
        expired = before
      end
      numbers[first], records, value, expires = 49, record, record .. rest, fresh_at
    end
    left = left - 1
  until left == 0
  if fits == nil then
    break
  elseif expires then
--> write
    problem = write(keys[next_packed], stored, records, expires, expired, rings)
    if problem then
      break
    end
  end
  number_count, answers, denied = last_number, answers + n, false
  next_packed = next_packed + 1
  repeats = repeats - 1
  undecided = repeats > 0 and not may_use_names
--}
end

--{ request
-- One request under all limits of its plan. If one of several limits denies a charge, all limits are read once more, without a
-- charge, for the readings of the reply.
repeat
  if several then
    kind, precision, prefix, limit_head, window, quota, burst, unit, step, bucket, bucket_end, calendar = table_unpack(several[index])
    fits, index = nil, index + 1
  end
  if prefix then
    if value and sub(value, from, from + #prefix - 1) ~= prefix then
      break
    end
    from = from + #prefix
  end
  if kind == SLIDING_LOG then
    break
--> decide
  end
  all_fit = all_fit and fits
  if fits == false and several and charges then
    from, last_number, index, charges = 1, first, 1, false
  elseif fits and charges then
    fresh_at = fresh_at - fresh_at % unit + unit
    if before then
      before = before - before % unit + unit
    end
    if prefix then
      record = prefix .. record
    end
    if several then
      after, latest_fresh_at, latest_before = (after or '') .. record, max(latest_fresh_at or 0, fresh_at), before and max(latest_before or 0, before)
    end
  end
until not several or fits == nil or index > limits
--}
