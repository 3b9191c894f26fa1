-- The short way of a reserve and of a settle: as statements, by the text of the algorithms that request.lua describes. It is for a plan of
-- one limit without blocks that is not a log, without slots, and whose holds do not release; for a key that has holds of this very plan
-- alone, none of which has expired; and for an id that is new, or whose hold is open. It leaves `reply` nil for all that it does not decide,
-- and has written nothing then. What costs most is each string and each field of one, so the numbers of the notes are packed by one format.
-- What is long is put before and behind them by `..`, since pack copies byte by byte.

do
--{ hold_short_words
local find = string.find
-- What a reply begins with, where no hold has ended, and what it ends with; its formats, by how many numbers the limit's reading has.
local DECIDED_ANEW, SETTLED_ONCE, STANDS = 'D' .. rep('\0', 15), 'S' .. rep('\0', 16), rep('\0', 14)
local NO_NUMBERS = rep('\0', 10)
local RESERVED_AS = { '<c16I7BI7c14', '<c16I7BI7I7c14', '<c16I7BI7I7I7c14' }
local SETTLED_AS = { '<c17I7I7I7I7BI7c14', '<c17I7I7I7I7BI7I7c14', '<c17I7I7I7I7BI7I7I7c14' }
-- The plan that the variables of the present limit are of, and whether it is one for the short way. What its notes begin with, up to how
-- many buckets were given something back, and up to what its own was. How long ids are remembered, and by what part of that a key stays
-- longer; the longest lease; its max_ids and max_open; whether it is a bucket; a hold's format and bytes behind its id.
local present, is_short, told, told_given, remembered, kept_unit, longest, own_ids, room, is_bucket, hold_as, hold_bytes
--}

--{ hold_short
repeat
  if index ~= present then
--> hold_short_plan
  end
  local stored, value = values[next_notes], values[next_packed]
  if not is_short or has_packed == 0 or asked ~= 0 and not (stored and asked >= 3) then
    break
  end
  -- What the notes tell; see notes.lua.
  local given, id_bytes, expires, open, first_end, last_end, body_at = 0, 0, 0, 0, 0, 0, 1
  local recent_count, ids, max_ids, numbers_of = 0, 0, 0, nil
  if stored then
--> hold_short_read
    if recent_count >= RECENT_MAX then
--> hold_short_move
--> hold_short_read
    end
  end
  local expired = expires
  local found, size, held, used, full, fits, record, fresh_at, before, notes
  if asked == 0 then
    if stored and find(stored, entry, body_at, true) or open >= room or ids > recent_count and try('HGET', keys[next_log], entry) then
      break
    end
  else
--> hold_short_open
  end
  local from, last_number, units = 1, 0, 0
  -- Merged runs leave later, so only a charge that is made may merge some. This one may yet be left to the long way.
  charges, cost, rings, length, may_merge, several = asked == 0, asked == 0 and number or 1, false, value and #value, false, nil
  if prefix then
    if value and sub(value, 1, #prefix) ~= prefix then
      break
    end
    from = 1 + #prefix
  end
  if kind == SLIDING_LOG then
    break
--> decide
  end
  if fits == nil or value and from <= #value and not rings then
    break
  end
  if asked ~= 0 then
--> hold_short_settle
  elseif fits then
--> hold_short_reserve
  end
  if notes then
--> hold_short_write
  end
  if problem then
    break
  end
--> hold_short_reply
until true
--}

--{ hold_short_plan
-- Reads the terms and the limit of a plan.
local terms_start, name_size = terms_at[index], byte(request, terms_at[index])
local flags, plan, _
flags, _, remembered, longest, _, own_ids, room, _, _, plan = unpack('<BBI5I5I6I3I2I2BB', request, terms_start + 9 + name_size)
present, is_short = index, flags == 0 and plan_at[plan] and byte(request, plan_at[plan]) == 1
if is_short then
  local at = plan_at[plan] + 1
  local fingerprint = sub(request, at + 3, at + (byte(request, at + 3) >= 248 and 7 or 3))
  told = pack('<BB', VERSION, 1) .. sub(request, terms_start, terms_start + 29 + name_size)
  told_given = told .. pack('<BBc0', 1, #fingerprint, fingerprint)
--> limit
  is_short, is_bucket = kind ~= SLIDING_LOG, kind == TOKEN_BUCKET
  hold_as, hold_bytes = is_bucket and '<I6I7I7I7' or '<I6I7I7', is_bucket and 27 or 20
  kept_unit = max(floor(remembered / 8), 1000000)
end
--}

repeat
--{ hold_short_read
local is_given, head, at = nil, told, #told + 2
is_given, id_bytes = byte(stored, at - 1, at)
is_given = is_given ~= 0
if is_given then
  head, at = told_given, #told_given + 8
  id_bytes = byte(stored, at)
end
id_bytes = id_bytes or 0
if is_given and not is_bucket or find(stored, head, 1, true) ~= 1 or #stored < at + (id_bytes >= NO_IDS and 21 or 39) then
  break
elseif id_bytes >= NO_IDS then
  given, expires, open, first_end, last_end, body_at = unpack(is_given and '<I7I6I2I7I7' or '<BI6I2I7I7', stored, #head + 1)
else
  given, expires, recent_count, ids, numbers_of, max_ids, open, first_end, last_end, body_at =
    unpack(is_given and '<I7I6I2I3c10I3I2I7I7' or '<BI6I2I3c10I3I2I7I7', stored, #head + 1)
end
id_bytes, expires = id_bytes % NO_IDS, (expires - id_bytes) / 256
if open > 0 and (first_end <= now or last_end > now + longest) then
  break
end
--}
until true

repeat
--{ hold_short_open
-- Finds the open hold of this id. What is found may be a part of another one, so its place is checked.
found, size = find(stored, entry, body_at, true), hold_bytes + #entry
if not found or #stored < found + size - 1 then
  break
end
local place, left, plan = body_at, open, nil
if id_bytes == id_size then
  left = open - floor((found - body_at) / size)
  place = found - (found - body_at) % size
else
  while left > 0 and place < found do
    place, left = place + hold_bytes + 1 + (byte(stored, place) or 0), left - 1
  end
end
if left <= 0 or place ~= found then
  break
end
local _
held, _, _, full = unpack(hold_as, stored, found + #entry)
-- The plan is the last byte of that number, and 0 for an id that was not known before.
plan = held % 256
held = (held - plan) / 256
used = asked == 3 and number or held
if plan > 0 or used > held then
  break
end
numbers_of, max_ids = numbers_of or NO_NUMBERS, max(max_ids, own_ids)
if ids >= max_ids then
  -- The first one is forgotten.
  local first, gaps, stale = unpack('<I5I3I2', numbers_of)
  if gaps > 0 or ids == recent_count then
    break
  end
  ids, numbers_of = ids - 1, pack('<I5I3I2', first + 1, 0, stale + 1)
end
--}
until true

repeat
--{ hold_short_settle
units = value and held - used or 0
if not value then
  -- What was charged counts no more.
--> check_type
  if problem then
    break
  end
elseif units > 0 then
  local debt, emission = numbers[1], step
  if not is_bucket then
    break
  end
--> hold_bucket_units
  if units > 0 then
    debt, given = debt - units * step, given + units * step
    if given > GIVEN_MAX or debt == 0 then
      -- A bucket that is full again has no record.
      break
    end
    numbers[1], fits, record, fresh_at = debt, debt <= (burst - 1) * step, pack(bucket, limit_head, now + debt), before
  end
end
local until_us = now + remembered
local kept_until = until_us - until_us % kept_unit + kept_unit
if kept_until > expires * 1000000 then
  expires = ceil(kept_until / 1000000)
end
-- Of an id that is SETTLED, which is 0, six bytes are what was used, and of the first plan six are what was held.
local head_as = given > 0 and '<I7I6I2I3c10I3I2I7I7' or '<BI6I2I3c10I3I2I7I7'
notes = (given > 0 and told_given or told)
  .. pack(head_as, given, expires * 256 + id_bytes, recent_count + 1, ids + 1, numbers_of, max_ids, open - 1, first_end, last_end)
  .. sub(stored, body_at, found - 1) .. sub(stored, found + size) .. pack('<c0I6I6I7', entry, held * 256, used, until_us)
--}
until true

repeat
--{ hold_short_reserve
if rings and #record ~= from - 1 then
  break
end
local ends = now + lease
local until_us = ends + remembered
local kept_until = until_us - until_us % kept_unit + kept_unit
if kept_until > expires * 1000000 then
  expires = ceil(kept_until / 1000000)
end
id_bytes = ((open == 0 or id_bytes == id_size) and id_size or 0) + (numbers_of and 0 or NO_IDS)
first_end, last_end = open > 0 and first_end < ends and first_end or ends, open > 0 and last_end > ends and last_end or ends
local of_ids, rest = numbers_of and sub(stored, body_at - 34, body_at - 17) or '', stored and sub(stored, body_at) or ''
local notes_as = given > 0 and '<I7I6c0I2I7I7c0I6I7I7I7' or is_bucket and '<BI6c0I2I7I7c0I6I7I7I7' or '<BI6c0I2I7I7c0I6I7I7'
notes = (given > 0 and told_given or told)
  .. pack(notes_as, given, expires * 256 + id_bytes, of_ids, open + 1, first_end, last_end, entry, cost * 256, now, ends, fresh_at + given)
  .. rest
fresh_at, before = fresh_at - fresh_at % unit + unit, before and before - before % unit + unit
--}
until true

--{ hold_short_write
-- Writes the notes, and then the state, if it has changed.
--> write
problem = write(keys[next_notes], stored, notes, expires * 1000000, expired * 1000000)
if not problem and record then
  record = prefix and prefix .. record or record
--> store
  if not problem then
    values[next_packed] = value and from <= #value and record .. sub(value, from) or record
  elseif stored then
    -- By the command that was not refused.
    write(keys[next_notes], notes, stored, expired * 1000000, expires * 1000000)
  else
    try('DEL', keys[next_notes])
  end
end
if not problem then
  values[next_notes] = notes
end
--}

repeat
--{ hold_short_move
-- Moves the recent ids, which are many.
--> hold_move
local moved, result = pcall(move_recent, stored, keys[next_notes], keys[next_log])
if not moved then
  problem = type(result) == 'table' and result.err or tostring(result)
  break
end
values[next_notes], stored = result, result
--}
until true

--{ hold_short_reply
-- Strings are copied three times.
work = work + 8 + (stored and #stored / 200 or 0)
numbers[last_number + 1] = STANDS
if asked == 0 then
  reply = pack(RESERVED_AS[last_number], DECIDED_ANEW, fits and lease or 0, fits and 49 or 48, numbers[1], numbers[2], numbers[3], STANDS)
else
  reply = pack(SETTLED_AS[last_number], SETTLED_ONCE, held, used, 0, units, fits and 49 or 48, numbers[1], numbers[2], numbers[3], STANDS)
end
--}
end
