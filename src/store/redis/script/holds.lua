-- Calls with an id, and those about holds; a script of its own, so that other requests pay nothing for it. It begins as request.lua and
-- read.lua do, whose layout it has up to the groups. Twin of src/core/algorithm/holds.rs: the same names mean the same.
--
-- KEYS     packed states as in request.lua; then, group by group: the name of the holds and that of the ids, and the group's logs.
-- ARGV[1]  behind the numbers of groups and of packed states: terms of plans B, then for each: its plan as notes.lua has it; max_open I2,
--          the quota of its slots I2 or 0, 1 in shadow mode or else 0 B, which of the plans above has its limits B, 255 for none; then per
--          group: requests I2, has a packed state B, names of logs and index B, then per request: terms B, counted from 0, call B (see
--          calls.lua), cost or units used I7, lease or flag I7, length of the id B, id.
-- Reply    one string, per request in this order: a letter of what became of it; holds that ended I4, such that gave units back I4, units
--          I7; what the letter has, see calls.lua; and where the key stands, see view.lua. Or 'E', 'R' or 'T' as in request.lua.
--
-- Order of the writes: what is known of ids, then the holds, then the states. Where Redis refuses one, those before it are undone. What is
-- forgotten goes last. So no unit is charged or given back whose note is not kept.
-- Work is bounded: a call looks at the holds of its key, of which there are 1,000 a plan at most, and at ids one by one.

if #keys > packed + 2 * groups then
--> log
end
local read_terms, group_of, call_of = (function()
--> general_parts
--> hold_functions
return read_terms, group_of, call_of
end)()

local terms, terms_count, at = {}, unpack('<B', request, groups_at)
for index = 0, terms_count - 1 do
  terms[index], at = read_terms(at)
end
for _ = 1, groups do
  local group, problem, first
  n, has_packed, logs, at = unpack('<I2BB', request, at)
  first = next_log + 2
  local key, names = has_packed == 1 and keys[next_packed], { keys[next_log], keys[next_log + 1] }
  local decided, result = pcall(group_of, key, key and values[next_packed], names, first, first + logs - 1)
  for _ = 1, n do
    local index, asked, number, lease, id
    index, asked, number, lease, id, at = unpack('<BBI7I7Bc0', request, at)
    local ask = { call = asked, number = number, lease = lease, id = id, terms = terms[index], limits = false, begun = false }
    if not terms[index] then
      return { err = MALFORMED }
    end
    if decided then
      group = group or result
      decided, result = pcall(call_of, group, ask)
    end
    final = final + 1
    if decided then
      replies[final] = result
    else
      -- Requests of many callers share this call: a key that cannot be decided must not fail those after it.
      problem = problem or type(result) == 'table' and result.err or tostring(result)
      local refusal
--> refusal
      replies[final] = refusal
    end
  end
  next_packed, next_log = next_packed + has_packed, first + logs
end
if at <= #request or next_packed <= packed or next_log <= #keys then
  return { err = MALFORMED }
end
return table.concat(replies)
