-- The ids of a key that are not open. Twin of src/core/algorithm/holds/ended.rs.
-- They have numbers in the order in which they ended. The recent ones, which are the last, are in the notes: length of the id B, id, plan
-- B, cost or units held I5, units used I5, kind B, until when it is known I7. Those before them are in a HASH, in parts: what was moved there
-- together. The field of a part is the number of its first id, in decimal digits. It has: where the ids begin I2, counted from 1; of each
-- plan that they are of: plan B, 1 if it gives units back or else 0 B, length of its name B, name; then the ids, as the notes had them. The
-- field of an id is its length B and the id; its value is the field of its part. An id that ended once more has left a gap: its field is not
-- there, or has another part. Ids whose numbers the notes do not count mean nothing, and are deleted when next ids are moved. So a call
-- settles a hold by one write, and the HASH is written once for many, which are copied as they are.

--{ hold_words
-- Bytes of an id beside itself, and before the time until when it is known.
local ID_BYTES, UNTIL_AT = 20, 13
--}

--{ hold_recent
-- Kinds of ids: a hold that was settled, a use that was settled and never reserved, a hold whose lease ended, a ShouldAllow, a Record.
local SETTLED, USED, EXPIRED, ALLOWED, RECORDED = 0, 1, 2, 3, 4
-- An id of one of these plans as the notes and a part have it, and where the next one begins.
local function read_id(plans, value, at)
  local id, plan = { number = false, releases = false, name = false, place = false }, nil
  id.id, plan, id.cost, id.actual, id.kind, id.until_us, at = unpack('<Bc0BI5I5BI7', value, at)
  id.plan = plans[plan + 1]
  id.releases, id.name = id.plan.releases, id.plan.name
  return id, at
end

local function pack_recent(id, place)
  return pack('<Bc0BI5I5BI7', #id.id, id.id, place, id.cost, id.actual, id.kind, id.until_us)
end
--}

--{ hold_ids
-- How many numbers the HASH has: ids and gaps.
local function hashed(notes)
  return notes.ids + notes.gaps - notes.recent_count
end

-- Maximum number of parts of the HASH at which one call looks for the first id, and the work of that, in microseconds.
local PARTS_MAX, PART_WORK = 16, 20

-- The part of the HASH that the first number is in: the field of each id, false for one that has left a gap. Nil without a HASH, since it
-- was lost; false where the call has looked at enough of them. Parts before it go.
local function front_part(group)
  local notes = group.notes
  while not group.front or notes.stale >= #group.front do
    local first, fields, at = notes.first - notes.stale, {}, nil
    if group.front then
      for _, field in ipairs(group.front) do
        if field then
          group.gone[field] = true
        end
      end
      group.gone[format('%d', first)] = true
      first, notes.stale, group.front = first + #group.front, notes.stale - #group.front, false
    end
    if group.parts_left == 0 then
      return false
    end
    group.parts_left, group.more_work = group.parts_left - 1, group.more_work + PART_WORK
    local field = format('%d', first)
    local part = call('HGET', group.names[2], field)
    if not part then
      return nil
    end
    at = unpack('<I2', part)
    while at <= #part do
      local size = byte(part, at)
      fields[#fields + 1], at = sub(part, at, at + size), at + size + ID_BYTES
    end
    for place, of in ipairs(call('HMGET', group.names[2], table_unpack(fields))) do
      fields[place] = of == field and fields[place]
    end
    group.front = fields
  end
  return group.front
end

-- The plans of the ids of a part, and where the first id begins.
local function read_part(part)
  local plans, at, ids_at = {}, 3, unpack('<I2', part)
  while at < ids_at do
    local plan, releases, name
    plan, releases, name, at = unpack('<BBBc0', part, at)
    plans[plan + 1] = { releases = releases == 1, name = name }
  end
  return plans, ids_at
end

-- Bytes of a part that are searched in a microsecond.
local BYTES_SEARCHED_PER_US = 200

-- What the HASH has of an id that the notes count; else false.
local function hashed_id(group, id)
  local notes, name = group.notes, pack('<Bc0', #id, id)
  local field = hashed(notes) > 0 and not group.gone[name] and call('HGET', group.names[2], name)
  local number = field and (tonumber(field) or error('tollgate: ids that cannot be read', 0))
  local part = field and call('HGET', group.names[2], field)
  if not part then
    return false
  end
  group.more_work = group.more_work + #part / BYTES_SEARCHED_PER_US
  local plans, at = read_part(part)
  local found_at = string.find(part, name, at, true)
  -- What is found may be a part of another id.
  while found_at and at < found_at do
    at, number = at + byte(part, at) + ID_BYTES, number + 1
    found_at = at > found_at and string.find(part, name, at, true) or found_at
  end
  local place = found_at == at and number - notes.first
  if not place or place < 0 or place >= hashed(notes) then
    return false
  end
  local found = read_id(plans, part, at)
  found.number = number
  return found
end

-- What is kept of an id that is not open, whether it is known yet or not.
local function id_of(group, id)
  local notes, found = group.notes, group.ids[id]
  if found ~= nil then
    return found
  end
  if notes.recent_count > 0 and (notes.recent or string.find(notes.body, pack('<Bc0', #id, id), 1, true)) then
    holds_of(notes)
    found = notes.recent_by_id[id]
  end
  group.ids[id] = found or hashed_id(group, id)
  return group.ids[id]
end

-- Takes an id out of the recent ones. Its place stays, so that none of the others has to move.
local function drop_recent(notes, id)
  notes.recent[id.place], notes.recent_by_id[id.id], notes.recent_count = false, nil, notes.recent_count - 1
end

-- Takes what is kept of an id out of the ids.
local function drop_id(group, id)
  local notes = group.notes
  notes.ids, group.ids[id.id] = notes.ids - 1, false
  if id.number then
    notes.gaps, group.gone[pack('<Bc0', #id.id, id.id)] = notes.gaps + 1, true
    return
  end
  drop_recent(notes, id)
end

-- Forgets the first id. Returns whether it has; a call that has looked at many gaps before it leaves that to the next one.
local function forget_first(group)
  local notes = group.notes
  while hashed(notes) > 0 do
    local front = notes.gaps == 0 or front_part(group)
    if front == false then
      return false
    elseif not front then
      notes.first, notes.ids, notes.gaps, notes.stale = notes.first + hashed(notes), notes.recent_count, 0, 0
      return true
    end
    local field = notes.gaps > 0 and front[notes.stale + 1]
    local is_id = notes.gaps == 0 or field and not group.gone[field]
    notes.first, notes.stale = notes.first + 1, notes.stale + 1
    if is_id then
      notes.ids, group.ids = notes.ids - 1, {}
      return true
    end
    notes.gaps = notes.gaps - 1
  end
  local _, recent = holds_of(notes)
  while not recent[notes.recent_from] do
    notes.recent_from = notes.recent_from + 1
  end
  local first = recent[notes.recent_from]
  notes.ids, group.ids[first.id] = notes.ids - 1, false
  drop_recent(notes, first)
  return true
end

-- Remembers an id that is not open, in place of what was known of it.
local function remember(group, id, plan, kind, cost, actual, until_us)
  local notes, before = group.notes, id_of(group, id)
  notes.is_changed = true
  if before then
    drop_id(group, before)
  end
  if until_us <= now then
    return
  end
  local _, recent = holds_of(notes)
  local noted = noted_plan(notes, plan)
  local found = {
    id = id, number = false, plan = noted, releases = plan.releases, name = plan.name, cost = cost, actual = actual, kind = kind,
    until_us = until_us, place = #recent + 1,
  }
  recent[found.place], notes.recent_by_id[id], group.ids[id] = found, found, found
  notes.ids, notes.recent_count, notes.max_ids = notes.ids + 1, notes.recent_count + 1, max(notes.max_ids, plan.max_ids)
  keep_until(notes, plan, until_us)
  while notes.ids > notes.max_ids and forget_first(group) do end
end

-- Deletes the fields of ids that have left a gap.
local function sweep(group)
  local fields = {}
  for field in pairs(group.gone) do
    fields[#fields + 1] = field
  end
  for first = 1, #fields, 1000 do
    call('HDEL', group.names[2], table_unpack(fields, first, math.min(first + 999, #fields)))
  end
end
--}

--{ hold_move
-- Sets move_recent, which is made where a call first needs it.
if not move_recent then
--> text_of
  -- To move an id, in microseconds.
  local MOVE_WORK = 3
  -- Of a HASH, what went there together as one part: from its front on, forgets the ids that nobody knows any more. Returns the numbers of
  -- the notes that this changes, and the fields of parts of which the notes count none any more. Without ids in the HASH, it was lost.
  local function forget_over(key, first, ids, gaps, stale, recent_count)
    local gone = {}
    -- More are forgotten than are moved.
    for _ = 1, 4 do
      local field, fields, untils = format('%d', first - stale), {}, {}
      local part = ids + gaps + stale > recent_count and call('HGET', key, field)
      if not part then
        return first + ids + gaps - recent_count, recent_count, 0, 0, gone
      end
      local ids_at = unpack('<I2', part)
      local at = ids_at
      for _ = 1, math.min(stale, #part) do
        at = at + (byte(part, at) or 0) + ID_BYTES
      end
      -- Mostly the front is known yet, and nothing is to be forgotten.
      local size = byte(part, at)
      if size and unpack('<I7', part, at + size + UNTIL_AT) > now and call('HGET', key, sub(part, at, at + size)) == field then
        break
      end
      at = ids_at
      while at <= #part do
        size = byte(part, at)
        fields[#fields + 1], untils[#untils + 1] = sub(part, at, at + size), unpack('<I7', part, at + size + UNTIL_AT)
        at = at + size + ID_BYTES
      end
      local is_known = false
      for place, of in ipairs(call('HMGET', key, table_unpack(fields))) do
        local is_own = of == field
        is_known = is_known or place > stale and is_own and untils[place] > now
        if place > stale and not is_known then
          local is_gap = not is_own and gaps > 0
          first, stale, ids, gaps = first + 1, stale + 1, ids - (is_gap and 0 or 1), gaps - (is_gap and 1 or 0)
        end
        fields[place] = is_own and fields[place]
      end
      if stale < #fields then
        break
      end
      for _, id in ipairs(fields) do
        gone[#gone + 1] = id or nil
      end
      gone[#gone + 1], stale = field, stale - #fields
    end
    return first, ids, gaps, stale, gone
  end

  -- Where the recent ids begin in notes, and of each plan, from 0, what a part has of it.
  local function find_recent(value)
    local plans, at, told, sizes = byte(value, 2), 3, {}, {}
    for index = 0, plans - 1 do
      local name, _, flags, buckets, next_at = unpack('<Bc0c8BB', value, at)
      at, told[index] = next_at + 19, pack('<BBBc0', index, flags % 2, #name, name)
      sizes[index] = 21 + 7 * buckets * (1 + flags % 2)
    end
    local given, open = byte(value, at), 0
    at = at + 1
    for _ = 1, given do
      at = at + 8 + byte(value, at)
    end
    local head_at = at
    at = at + 6 + 18
    for _ = 1, plans do
      open, at = open + unpack('<I2', value, at), at + 16
    end
    for _ = 1, open do
      local size = byte(value, at)
      at = at + size + sizes[byte(value, at + size + 1) % OLDER]
    end
    return head_at, at, told
  end

  -- Moves the recent ids of notes to the HASH, and returns the notes without them. The HASH is told first: what it has more than the notes
  -- count is of no use, so nothing is to be undone if Redis refuses to write them. What is forgotten goes last.
  move_recent = function(value, key, ids_key)
    local head_at, recent_at, plans = find_recent(value)
    local _, expires = unpack(HEAD, value, head_at)
    local recent_count, ids, first, gaps, stale, max_ids = unpack(IDS, value, head_at + 6)
    work = work + recent_count * MOVE_WORK
    local at, fields, told, gone = recent_at, {}, '', nil
    first, ids, gaps, stale, gone = forget_over(ids_key, first, ids, gaps, stale, recent_count)
    local field = format('%d', first + ids + gaps - recent_count)
    -- Those that nobody knows any more are forgotten, if they are the first ones.
    while recent_count > 0 and ids + gaps == recent_count and unpack('<I7', value, at + byte(value, at) + UNTIL_AT) <= now do
      at, ids, recent_count = at + byte(value, at) + ID_BYTES, ids - 1, recent_count - 1
    end
    local from = at
    for place = 1, 2 * recent_count, 2 do
      local size = byte(value, at)
      if plans[0] ~= '' or plans[1] then
        local plan = byte(value, at + size + 1)
        told, plans[plan] = told .. plans[plan], ''
      end
      fields[place] = sub(value, at, at + size)
      fields[place + 1], at = field, at + size + ID_BYTES
    end
    if recent_count > 0 then
      fields[#fields + 1], fields[#fields + 2] = field, pack('<I2', #told + 3) .. told .. sub(value, from)
      for place = 1, #fields, 1000 do
        call('HSET', ids_key, table_unpack(fields, place, math.min(place + 999, #fields)))
      end
      call('PEXPIREAT', ids_key, text_of(expires * 1000000))
    end
    value = sub(value, 1, head_at + 5) .. pack(IDS, 0, ids, first, gaps, stale, max_ids) .. sub(value, head_at + 24, recent_at - 1)
    call('SET', key, value, 'KEEPTTL')
    local dropped, moved = {}, {}
    for place = 1, gone[1] and #fields or 0, 2 do
      moved[fields[place]] = true
    end
    for _, gone_field in ipairs(gone) do
      -- An id that was forgotten and has ended anew is there again.
      dropped[#dropped + 1] = not moved[gone_field] and gone_field or nil
    end
    for place = 1, #dropped, 1000 do
      try('HDEL', ids_key, table_unpack(dropped, place, math.min(place + 999, #dropped)))
    end
    return value
  end
end
--}
