-- Calls with an id, and those about holds; a script of its own, so that other requests pay nothing for it. It begins as request.lua and
-- read.lua do, whose layout it has up to the groups. Twin of src/core/algorithm/holds.rs: the same names mean the same.
--
-- KEYS     packed states as in request.lua; then the name of each group's holds, which count as packed states; then, group by group: the
--          name of the ids, and the group's logs.
-- ARGV[1]  behind the numbers of groups and of packed states: terms of plans B, then for each: its plan as notes.lua has it; max_open I2,
--          the quota of its slots I2 or 0, 1 in shadow mode or else 0 B, which of the plans above has its limits B, 255 for none; then per
--          group: requests I2, has a packed state B, names of logs and index B, then per request: terms B, counted from 0, call B (see
--          calls.lua), cost or units used I7, lease or flag I7, length of the id B, id.
-- Reply    one string, per request in this order: a letter of what became of it; holds that ended I4, such that gave units back I4, units
--          I7; what the letter has, see calls.lua; and where the key stands, see view.lua. Or 'E', 'R' or 'T' as in request.lua.
--          Or 'B', for a request that is left to the next call, and what ended for it already, as above.
--
-- Most reserves and settles go a short way (short.lua), and all else by functions that a call makes which needs them.
-- Order of the writes: the holds, in which recent ids are, then the states. Where Redis refuses one, those before it are undone. Ids are
-- moved to their HASH first, and what is forgotten goes last. So no unit is charged or given back whose note is not kept.
-- Work is bounded: a call looks at the holds of its key, of which there are 1,000 at most, and at as many ids and some more. It may write
-- 1,000 charges of each log anew. What that takes is counted in microseconds. Beyond WORK_MAX, nothing is done for the
-- requests that are left. Where many holds are to end, a call ends some of them, and leaves its request to the next one.

--> hold_words
--> hold_short_words
local terms_at, terms, terms_count, at = {}, {}, unpack('<B', request, groups_at)
for index = 0, terms_count - 1 do
  terms_at[index], at = at, at + 36 + byte(request, at)
end
local next_notes, call_of, group_of, read_terms, move_recent = packed - groups + 1, nil, nil, nil, nil
local work, WORK_MAX, LONG_WORK = 0, 1250, 60
next_log = packed + 1
if next_notes < 1 or at > #request + 1 then
  return { err = MALFORMED }
end
for _ = 1, groups do
  -- `group` is what the long way knows of the name, once it was needed; `problem` what Redis said against a request of it.
  local group, problem, decided, result
  n, has_packed, logs, at = unpack('<I2BB', request, at)
  for _ = 1, n do
    local index, asked, number, lease, id_size
    index, asked, number, lease, id_size, at = unpack('<BBI7I7B', request, at)
    -- The id as holds have it, with its length.
    local reply, entry = nil, sub(request, at - 1, at + id_size - 1)
    at = at + id_size
    if not terms_at[index] or at > #request + 1 then
      return { err = MALFORMED }
    end
    if work > WORK_MAX then
      reply = pack('<BI4I4I7', 66, 0, 0, 0)
    elseif not group and not problem and asked <= 4 then
--> hold_short
    end
    if not reply and not problem then
      -- Holds that a request before this one has parsed are looked through and packed again: 24 bytes in a microsecond. Else they are
      -- searched and copied. To parse them, to end some and to move ids are counted where they are done.
      local is_parsed, stored = group and group.notes.holds, group and group.notes.value or values[next_notes]
      local expected = LONG_WORK + #(stored or '') / (is_parsed and 24 or 400)
      if work > 0 and work + expected > WORK_MAX then
        -- Nothing of what comes later may be decided before it.
        reply, work = pack('<BI4I4I7', 66, 0, 0, 0), WORK_MAX + 1
      else
--> hold_long
      end
    end
    if not reply then
      -- Requests of many callers share this call: a key that cannot be decided must not fail those after it.
      local refusal
--> refusal
      reply = refusal
    end
    final = final + 1
    replies[final] = reply
  end
  next_packed, next_notes, next_log = next_packed + has_packed, next_notes + 1, next_log + 1 + logs
end
if at <= #request or next_packed ~= packed - groups + 1 or next_notes ~= packed + 1 or next_log ~= #keys + 1 then
  return { err = MALFORMED }
end
return table.concat(replies)
