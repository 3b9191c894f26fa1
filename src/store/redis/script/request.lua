-- Decides requests, each under all limits of its plan, all or nothing. The requests for one name are a group. They are decided
-- one after another in their order. The name's state is read once and, where possible, written once.
--
-- KEYS     the name of each group's packed state, for groups that have one, in their order; then, group by group, the
--          names of logs, and after them their index, if one of their windows is not common; see log_index.lua. All
--          keys of one group carry the same hash tag, and no two groups share a key. None, in a call for several slots of a
--          Cluster's node: Redis would refuse them as keys. ARGV then has the names, in this order, after the request.
-- ARGV[1]  whole numbers, microseconds:
--            where plans end I4, counted in bytes; plans B, then per plan: limits B, and 128 more if some have blocks, then per limit:
--            kind B, precision B (0 if it has none, 1 of a FIXED_WINDOW_BY_CLOCK whose windows are a calendar's), length of prefix B,
--            prefix (its fingerprint, and of a token_bucket its rate, see there), window I7, quota I7, burst I7, and of a calendar the
--            starts I7 of its window, of the one before, and of the one before that; then, if some have blocks, per limit: how long it
--            blocks I4, in milliseconds;
--            groups B, names of packed states B, then per group: requests I2, has a packed state B, names of logs and index B,
--            form B (1 when all its requests are of one plan, which has one limit or no log), repeats B (how many groups
--            in a row look just so, this one included), then per request: plan B, counted from 0, mode B (1 charge, 0
--            peek), cost I5. Groups that repeat another are left out.
--            If there are joint decisions, the last group stands for all of them: requests I2 (1), 0 B, 1 B if they have logs or else
--            0, JOINT B, 1 B; then their names B, how many of them, the first ones, have a packed state B, joint decisions I2; if they
--            have logs, per name: names of logs and index B; then per joint decision: mode B (0 peek, 1 charge, 2 charge of a part,
--            whose instant is told, 3 undo of such a charge), requests B, then per request: name B, counted from 0 among theirs, plan
--            B, flags B (the sum of 1 if it is in shadow mode, 2 if it is a peek among charges, REPEATED if its name stands in the
--            decision before), place of its reply I2, from 0 among theirs, cost I5 (of an undo 0 where nothing was charged), and of an
--            undo for each limit the instant to undo I7, see there. No other group has one of their names.
--          Its counts must agree with one another, with its length and with the number of keys; if not, the reply is an
--          error. So it is, or an 'E' for that group, where a group names a plan or another place that does not exist.
-- Reply    one string, per request in this order: '1' or '0' (whether the cost fits), then for each limit its reading, one
--          to three I7, see each algorithm; while a block runs '3' or '2', and behind the readings for each limit how long its block
--          still runs I7, see block.lua; or 'E' and an error as length
--          I2 and text, when its state cannot be read: it is not ours, or a newer version's. To a call by names: 'R' and the
--          places I2, from 0, of names that the node refused, because it does not have their slots, or not all of their keys,
--          or wants names to be keys. Nothing was written then, for any name. Or 'T' and the time I7, which is in the window of
--          no calendar: then nothing was read, and the client sends the call again with the windows of that time. Behind all
--          replies: the call's instant I7, if a joint decision is to tell it.
--
-- Packed state: records of blocks, see block.lua; records, each a fingerprint and that algorithm's payload; and if one is of a
-- sliding_window with more than one run, the byte RINGS and each such record's ring; see there. A limit finds its record by its fingerprint, so adding,
-- removing or reordering limits resets no other's usage. Records of other limits are kept until they are fresh. Limits and
-- records are in the order of their fingerprints, as bytes, so that what one plan wrote is where another one looks first.
-- A fingerprint is a head B (kind, by the names of src/core/plan/fingerprint.rs, and eight times the window's index among
-- common_windows(), or 31), for SLIDING_WINDOW_OF_PRECISION the precision B, for a window that is not common its milliseconds I4, or with the top
-- bit set its seconds, or with the top two a calendar's unit, first day and zone.
-- Invariants: a peek writes nothing; a denial writes only a clamp, or a block that it begins; an undo of what is gone writes nothing; every key
-- written gets an expiry, which only collects garbage: what counts is read from the value and the clock. Redis may refuse any
-- write, and under any name there may be anything: then the group's reply is an 'E', and its request is charged nowhere. So what
-- is read is checked, outside of a pcall too; and a write that may be refused comes first, or the ones before it are undone.
--
-- In each call Lua makes every function anew, and every variable that a function shares. That costs more than the decision. So
-- there are two ways to decide:
--   the short way    for charges and peeks by one plan, if the name's state has only that plan's records, in the order of its
--                    limits. It is statements in loops (short/*.lua). It makes only the functions that a call needs.
--                    Joint decisions of such requests have a loop of their own (short/joint.lua).
--   the general way  for all other cases: undos, several plans, records of other plans, logs beside records, and states ahead
--                    of a clock that stepped back; blocks. It is functions (general.lua), made by a call that needs them.
-- Each algorithm has its rule in a file of its own. The short way is statements (the region `decide`), and the general way functions
-- (the region `records`), which decide by the same statements or, for rare and costly states, by code of their own. script.rs puts the
-- regions in their places.

local request, keys = ARGV[1], KEYS
-- A request that contradicts itself was not made by this version: nothing that it says can be relied on.
local MALFORMED = 'ERR tollgate: the request of this call is malformed'
-- Where in the request each plan begins, from 0. Of a state that may have rings, so many bytes are read as records take.
local plan_at, after_plans, plans_end, plans = {}, 6, unpack('<I4B', request)
local read_to, has_rings = 0, false
for index = 0, plans - 1 do
  plan_at[index] = after_plans
  local limits, block_bytes = byte(request, after_plans), 0
  if limits == 0 then
    return { err = MALFORMED }
  elseif limits > 128 then
    limits, block_bytes = limits - 128, 4 * (limits - 128)
  end
  after_plans = after_plans + 1
  read_to = max(read_to, 40 * limits)
  for _ = 1, limits do
    local kind, precision, size = byte(request, after_plans, after_plans + 2)
    has_rings = has_rings or kind == SLIDING_WINDOW or kind == SLIDING_WINDOW_OF_PRECISION
    after_plans = after_plans + 24 + size
    if precision == 1 and kind == FIXED_WINDOW_BY_CLOCK then
      local since = now - unpack('<I7', request, after_plans)
      if since < 0 or since >= unpack('<I7', request, after_plans - 21) then
        return 'T' .. pack('<I7', now)
      end
      after_plans = after_plans + 21
    end
  end
  after_plans = after_plans + block_bytes
end
if after_plans ~= plans_end + 1 then
  return { err = MALFORMED }
end
local groups, packed, groups_at = unpack('<BB', request, after_plans)
-- In the order of the requests, one or several at a time, and how many of them are final, whatever happens to the rest of a
-- group.
local replies, final = {}, 0
