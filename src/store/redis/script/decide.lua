-- Decides the groups in their order and returns the reply. script.rs replaces each line `--> name` by the region of that name.

-- A stamp is a time I7 of which the upper three bits are free, because microseconds since 1970 stay below 2^53 until the year
-- 2255. They hold a tag, 0 to 7. In Lua a stamp is two numbers: its lower six bytes, and its last.
local STAMP_TOP = 281474976710656 -- 2^48
-- In a sliding_log, times are kept modulo TIMES, 4.4 years. The header's full time tells which multiple is meant, whatever the
-- clock has done since. Totals are kept modulo TOTALS. A list never holds more units than the largest quota of a sliding_log,
-- 100,000.
local TIMES, TOTALS = 140737488355328, 131072 -- 2^47, 2^17

-- Of the present group: the indices of its next keys, and how many equal groups in a row are left, this one included. Then
-- where its requests begin and where the next group does.
local next_packed, next_log, repeats, first_at, next_at = 1, packed + 1, 0, nil, groups_at
local n, has_packed, logs, alike
-- `limits` is the number of the plan's limits if the short way may be tried, and `plain` whether names.lua may be. `log_limit` is
-- the limit of a plan that is one log. `mode` and `cost` are those of the first request.
local limits, plain, log_limit, mode, cost
-- Whether the plan has blocks, so that a charge that is denied goes the general way.
local has_blocks
-- The present limit. The last bytes of its prefix are the number `limit_head`, and those before them, if any, are `prefix`.
-- `step` is the emission interval, or the length of a cell. `bucket` is the format of a bucket's records, and `bucket_end` the
-- offset of their last byte from their first. `calendar` has the starts of a calendar's window and of the two before it. `several`
-- is the list of all limits, if there are several.
local kind, precision, prefix, limit_head, window, quota, burst, unit, step, bucket, bucket_end, calendar
local several
-- Whether a request that fits is charged. If not, it is only answered.
local charges
-- Replies to equal groups, as numbers that are packed together. `answers` counts the requests, `filled` the numbers.
local numbers, answers, filled = {}, 0, 0
-- The expiry of the log that was written last, as a number and as the text that Redis takes.
local log_expires, log_expires_text
-- Formats of records by how many bytes a count takes, made when they are needed.
local fixed, dated, counter
-- Functions that are made when they are needed; see the regions of these names.
local write, read_element, pack_element, log, general, joint, limits_in, undo_charges, undo_joint
-- Whether the state has rings in Redis, its length if it is known, and whether runs may be merged there, as names.lua lets them.
local rings, length, may_merge
-- For the regions `decide`, which both ways share: whether the general way runs them, and whether a clock that stepped back
-- changed the record.
local in_general, clamped

while groups > 0 or repeats > 0 do
  if repeats == 0 then
--> group
  end

  -- The short way. Each algorithm's region `decide` decides a request under one limit. The limit's record must begin where the
  -- record before it ended. The region sets `fits` and the numbers of the reply; for a charge, it also sets the new record, when
  -- that is fresh, and when the old record was. It leaves `fits` nil if it finds another state, or a rare case. The general way
  -- then decides, since nothing was written.
  local problem, denied
  charges = mode == 1
  while plain and repeats > 0 do
--> names
  end
  if log_limit and n == 1 then
--> log_elements
    while repeats > 0 do
--> log_names
    end
  end
  if logs > 0 and repeats > 0 and alike ~= JOINT and not problem then
--> log
    if log_limit then
--> log_requests
    end
  end
  local undecided = repeats > 0 and (problem or not log_limit)
  while limits and undecided and not problem do
--> requests
  end
  if answers > 0 and (undecided or repeats == 0) then
    final = final + 1
    replies[final] = pack('<' .. rep('B' .. rep('I7', filled / answers - 1), answers), table_unpack(numbers, 1, filled))
    answers, filled = 0, 0
  end

  if undecided then
--> undecided
    next_packed, next_log, repeats = next_packed + has_packed, next_log + logs, repeats - 1
  end
end
if next_at <= #request or next_packed <= packed or next_log <= #keys then
  return { err = MALFORMED }
end
return table.concat(replies)
