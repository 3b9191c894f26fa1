-- The ids of a key that are not open: a HASH. Twin of a part of src/core/algorithm/holds/notes.rs.
-- Fields: `h`, the head: numbers of the first and the last id I6 I6, how many there are I4, the greatest max_ids of their plans I4, when the
-- key expires I7. `i` and an id: its number I6, kind B, until when it is known I7, cost or units held I6, units used I6, 1 if its plan gives
-- units back or else 0 B, and the plan's name. A number: the id of that number. Ids have numbers in the order in which they ended.

--{ hold_ids
-- Kinds of ids: a hold that was settled, a use that was settled and never reserved, a hold whose lease ended, a ShouldAllow, a Record.
local SETTLED, USED, EXPIRED, ALLOWED, RECORDED = 0, 1, 2, 3, 4
-- Ids that are forgotten in one step. More are forgotten than are added.
local FORGOTTEN = 8

local function read_id(text)
  local id = { text = text }
  local releases, at
  id.number, id.kind, id.until_us, id.cost, id.actual, releases, at = unpack('<I6BI7I6I6B', text)
  id.releases, id.name = releases == 1, sub(text, at)
  return id
end

-- The ids of a group, with what is known of this one. `fields` has what is to be written, false for a field that goes.
local function read_ids(key, id)
  local read = call('HMGET', key, 'h', 'i' .. id)
  local ids = { key = key, head = read[1], fields = {}, by_id = {}, first = 1, last = 0, count = 0, max_ids = 0, expires = 0 }
  if read[1] then
    ids.first, ids.last, ids.count, ids.max_ids, ids.expires = unpack('<I6I6I4I4I7', read[1])
  end
  ids.by_id[id] = read[2] and read_id(read[2])
  return ids
end

local function id_of(ids, id)
  if ids.by_id[id] == nil then
    local text = call('HGET', ids.key, 'i' .. id)
    ids.by_id[id] = text and read_id(text)
  end
  return ids.by_id[id]
end

-- The id of this number, if it has not gone.
local function numbered(ids, number)
  local field = format('%d', number)
  local id = ids.fields[field]
  if id == nil then
    id = call('HGET', ids.key, field)
  end
  return id
end

local function drop_id(ids, id, entry)
  ids.fields[format('%d', entry.number)] = false
  ids.fields['i' .. id], ids.by_id[id], ids.count = false, false, ids.count - 1
end

-- Forgets ids at whose end none is known any more, and those that are too many.
local function forget_some(ids)
  for _ = 1, FORGOTTEN do
    local id, entry
    while ids.first <= ids.last and not entry do
      id = numbered(ids, ids.first)
      entry = id and id_of(ids, id)
      if not entry or entry.number ~= ids.first then
        -- It has gone, or ended once more.
        entry, ids.first = nil, ids.first + 1
      end
    end
    if not entry or ids.count <= ids.max_ids and entry.until_us > now then
      return
    end
    drop_id(ids, id, entry)
    ids.first = ids.first + 1
  end
end

-- Remembers an id that is not open, in place of what was known of it.
local function remember(group, id, plan, kind, cost, actual, until_us)
  local ids = group.ids
  local before = id_of(ids, id)
  if before then
    drop_id(ids, id, before)
  end
  if until_us <= now then
    return
  end
  ids.last, ids.count, ids.max_ids = ids.last + 1, ids.count + 1, max(ids.max_ids, plan.max_ids)
  local text = pack('<I6BI7I6I6B', ids.last, kind, until_us, cost, actual, plan.releases and 1 or 0) .. plan.name
  ids.by_id[id] = read_id(text)
  ids.by_id[id].before = before and before.text
  ids.fields['i' .. id], ids.fields[format('%d', ids.last)] = text, id
  local unit = unit_of(plan.remember)
  ids.needed = max(ids.needed or 0, until_us - until_us % unit + unit)
  forget_some(ids)
end
--}

--{ hold_ids_written
-- Writes what is new of ids, and how to undo it.
local function write_ids(group)
  local ids, new, gone = group.ids, {}, {}
  for field, value in pairs(ids.fields) do
    if value then
      new[#new + 1], new[#new + 2], gone[#gone + 1] = field, value, field
    end
    group.forgotten[field] = not value or nil
  end
  if not next(ids.fields) then
    return
  end
  local expires = max(ids.expires, ids.needed or 0)
  local head = pack('<I6I6I4I4I7', ids.first, ids.last, ids.count, ids.max_ids, expires)
  local before, is_new = ids.head, not ids.head
  local place = #group.undo + 1
  local function undo()
    gone[#gone + 1] = is_new and 'h' or nil
    if gone[1] then
      call('HDEL', ids.key, table_unpack(gone))
    end
    if not is_new then
      call('HSET', ids.key, 'h', before)
    end
    for id, entry in pairs(ids.by_id) do
      if entry and entry.before then
        call('HSET', ids.key, 'i' .. id, entry.before)
      end
    end
  end
  for first = 1, #new, 1000 do
    call('HSET', ids.key, table_unpack(new, first, math.min(first + 999, #new)))
    group.undo[place] = undo
  end
  call('HSET', ids.key, 'h', head)
  group.undo[place] = undo
  if expires > ids.expires then
    call('PEXPIREAT', ids.key, text_of(expires))
  end
  ids.head, ids.expires, ids.fields, ids.needed = head, expires, {}, nil
end
--}
