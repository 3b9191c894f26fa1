-- The groups in their order, and the reply. A line `--> name` stands for the region of that name, which script.rs puts there.

-- A stamp is a time I7 of which the upper three bits are free, because microseconds since 1970 stay below 2^53 until the year
-- 2255. They hold a tag, 0 to 7. In Lua a stamp is two numbers: its lower six bytes, and its last.
local STAMP_TOP = 281474976710656 -- 2^48
-- Of a sliding_log. Times are kept modulo TIMES, 4.4 years: the header's time tells which multiple is meant, whatever the clock has
-- done since. Totals are kept modulo TOTALS: a list never holds more units than the largest quota of a sliding_log, 100,000.
local TIMES, TOTALS = 140737488355328, 131072 -- 2^47, 2^17

-- Of the group whose turn it is: its keys, how many that look like it follow, itself included, where its requests begin and
-- where the next group does.
local next_packed, next_log, repeats, first_at, next_at = 1, packed + 1, 0, nil, groups_at
local n, has_packed, logs, alike
-- How many limits its plan has, if the short way may be tried with them, and whether names.lua may; what a plan that is one log
-- limits; what its first request asks for.
local limits, plain, log_limit, mode, cost
-- The limit whose turn it is: its prefix, as all but the last byte, if there are more, and the last (of a token_bucket, more of
-- the last), its emission interval or the length of its cells, and the format of a bucket's records and one less than their
-- length, among others. All limits, where there are several.
local kind, precision, prefix, limit_head, window, quota, burst, unit, step, bucket, least
local several
-- Whether a request that fits is charged, and not only told.
local charges
-- Replies of names that look alike, as numbers, which are packed in one go: to how many requests, and numbers in all.
local numbers, answers, filled = {}, 0, 0
-- The last expiry of a log that was written, and as Redis takes it.
local log_expires, log_expires_text
-- Formats of records by how many bytes a count takes, made when they are needed.
local fixed, counter
-- Functions that are made when they are needed; see the regions of these names.
local write, read_element, pack_element, log, general
-- Set where the general way decides a record, by the regions that it shares with the short way: whether it does, and whether the
-- record was changed by a clock that stepped back.
local in_general, clamped

while groups > 0 or repeats > 0 do
  if repeats == 0 then
--> group
  end

  -- The short way. Each algorithm's region `decide` says of one limit, whose record must begin where the one before it ended,
  -- whether a request fits, what is answered, and where it is charged, the record after it, when that is fresh, and when the one
  -- before it was. It says neither and nothing is done where the state is another one, and where what it needs is rare: then
  -- the general way decides.
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
  if logs > 0 and repeats > 0 and not problem then
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
    settled = settled + 1
    replies[settled] = pack('<' .. rep('B' .. rep('I7', filled / answers - 1), answers), table_unpack(numbers, 1, filled))
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
