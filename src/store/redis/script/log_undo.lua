-- The undo of a charge in a sliding_log, see there: its units are taken from among those that came later, which keep their times.
-- No two calls lie between charge and undo for long, so the charges after it are few.

local function log_undo(limit, state, cost, instant)
--{ log_find_instant
-- Sets state.undone: the last charge before that instant, the last one of it, and the units in between. It is nil where none counts.
local oldest, before, last = state.oldest, nil, nil
state.undone = nil
if state.used > 0 and instant <= now and instant + limit.window > now and oldest.time <= instant and instant <= state.last.time then
  last = last_of(state)
  if last.time > instant then
    last = around(state, 'time', instant, oldest, last)
  end
  if oldest.time == instant then
    before = { index = oldest.index - 1, units = state.gone }
  elseif last.time == instant then
    before = around(state, 'time', instant - 1, oldest, last)
  end
  state.undone = before and { before = before, last = last, units = last.units - before.units }
end
--}

--{ log_take_back
-- Takes back so many of them, which are not all units that count. The charges after them are written anew, with smaller totals.
local undone, rest = state.undone, {}
if cost < undone.units then
  rest[1] = pack_charge(state, { time = instant, units = undone.last.units - cost })
end
local after = call('LRANGE', state.key, undone.last.index + 1, '-1')
for index = 1, #after do
  if #after[index] ~= 8 then
    error('tollgate: a log that cannot be read', 0)
  end
  local time, low = unpack('<I6I2', after[index])
  low = low - cost
  while low < 0 do
    -- The time has the top bit of the total.
    low, time = low + 65536, (time + TIMES) % (2 * TIMES)
  end
  rest[#rest + 1] = pack('<I6I2', time, low)
end
-- First a charge of no units, to know that those below will not be refused: before them, they are not in the list.
call('RPUSH', state.key, pack_charge(state, last_of(state)))
call('LTRIM', state.key, '0', undone.before.index)
for first = 1, #rest, 1000 do
  call('RPUSH', state.key, table_unpack(rest, first, math.min(first + 999, #rest)))
end
-- It is read anew.
logs_read[state.key] = nil
--}
end
