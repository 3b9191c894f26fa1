-- Reads the head of the next groups, which are equal but for their names, and their plan if the short way may decide them.

--{ group
n, has_packed, logs, form, repeats, first_at = unpack('<I2BBBB', request, next_at)
groups, next_at, limits, may_use_names, log_limit, has_blocks = groups - repeats, first_at + 7 * n, nil, nil, nil, nil
if n == 0 or repeats == 0 or groups < 0 or next_at > #request + 1
  or next_packed + has_packed * repeats > packed + 1 or next_log + logs * repeats > #keys + 1 then
  return { err = MALFORMED }
end
if form == 1 then
  local plan
  plan, mode, cost = unpack('<BBI5', request, first_at)
  local at = plan_at[plan]
  limits = mode <= 1 and at and byte(request, at)
  if limits and limits > 128 then
    limits, has_blocks = limits - 128, true
  end
  several, at = limits and limits > 1 and {}, limits and at + 1
  may_use_names = limits and n == 1 and (mode == 1 or not several)
  for index = 1, limits or 0 do
--> limit
    may_use_names = may_use_names and not prefix
    if several then
      several[index] = { kind, precision, prefix, limit_head, window, quota, burst, unit, step, bucket or false, bucket_end or 0,
        calendar }
    end
  end
  if logs > 0 then
    if limits == 1 and kind == SLIDING_LOG and (has_packed == 0 or has_blocks and n == 1) then
      log_limit = { window = window, unit = unit, quota = quota, is_indexed = prefix ~= false }
    end
    limits, may_use_names = nil, nil
  end
elseif form == JOINT then
  next_at = #request + 1
end
--}

do
--{ limit
-- Reads the limit that begins at `at`, up to the next one.
local size
kind, precision, size = byte(request, at, at + 2)
-- The last bytes of the prefix are read as one number, which is exact up to six.
local last, numbers_of = 1, '<BI7I7I7'
if kind == TOKEN_BUCKET then
  if size == 3 then
    last, bucket, numbers_of = 3, '<I3I7', '<I3I7I7I7'
  elseif size == 4 then
    last, bucket, numbers_of = 4, '<I4I7', '<I4I7I7I7'
  elseif size == 5 then
    last, bucket, numbers_of = 5, '<I5I7', '<I5I7I7I7'
  else
    last, bucket, numbers_of = 6, '<I6I7', '<I6I7I7I7'
  end
  bucket_end = last + 6
end
prefix, at = size > last and sub(request, at + 3, at + 2 + size - last), at + 3 + size
limit_head, window, quota, burst, at = unpack(numbers_of, request, at - last)
calendar = precision > 0 and kind == FIXED_WINDOW_BY_CLOCK
if calendar then
--> calendar_starts
end
unit, step = max(floor(window / 8), 1000000), ceil(window / (precision > 0 and precision or quota))
--}
end
