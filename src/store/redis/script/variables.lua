-- The variables of both scripts, behind the packed states that were read. Those of calls with ids use a part of them.

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
local n, has_packed, logs, form
-- `limits` is the number of the plan's limits if the short way may be tried, and `may_use_names` whether names.lua may be. `log_limit` is
-- the limit of a plan that is one log. `mode` and `cost` are those of the first request.
local limits, may_use_names, log_limit, mode, cost
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
-- Replies to equal groups, as numbers that are packed together. `answers` counts the requests, `number_count` the numbers.
local numbers, answers, number_count = {}, 0, 0
-- The expiry of the log that was written last, as a number and as the text that Redis takes.
local log_expires, log_expires_text
-- Formats of records by how many bytes a count takes, made when they are needed.
local fixed, dated, counter
-- Functions that are made when they are needed; see the regions of these names.
local write, read_element, pack_element, log, decide_group, limits_of, joint_functions, decide_joint, undo_charges, undo_joint
-- Whether the state has rings in Redis, its length if it is known, and whether runs may be merged there, as names.lua lets them.
local rings, length, may_merge
-- For the regions `decide`, which both ways share: whether the general way runs them, and whether a clock that stepped back
-- changed the record.
local in_general, clamped

