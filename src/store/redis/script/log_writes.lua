-- Writes to the list of a sliding_log, see there. Redis may refuse any of them: by the rules for its user, for want of memory, or
-- since it would make a key whose slot moves. So a write that changes nothing of what counts comes first: the expiry, and the front
-- of the list. The charge is the last write, or one that can be undone. A list is never deleted to be written anew: its slot
-- may take no new key.

--{ put_header
-- Puts the header before the charges of a list that lost its own. Redis may refuse that by the rules for its user: then the list
-- is written anew behind itself, and nothing is charged.
reply = try('LPUSH', key, header)
if type(reply) == 'table' then
  local left = try('LRANGE', key, '0', '-1')
  try('RPUSH', key, header)
  for first = 1, #left, 1000 do
    try('RPUSH', key, table_unpack(left, first, math.min(first + 999, #left)))
  end
  try('LTRIM', key, #left, '-1')
end
--}

--{ log_writes
-- Adds a charge up to which the list has all the units that count.
local function push(log, time)
  log.stored, log.newest, log.last = log.used, time, { time = time, units = log.used }
  log.last.index = call('RPUSH', log.key, pack_charge(log, log.last)) - 1
end

-- The list anew, with one charge, now, of so many units, until it expires then. Where this fails, nothing that counted is lost.
local function begin(log, units, expires)
  local is_new = not log.expires
  log.base, log.start, log.stored, log.gone, log.ahead, log.expires = now, 0, units, 0, nil, expires
  log.oldest = { index = 1, time = now, units = units }
  log.last = log.oldest
  local key, header, charge = log.key, pack_header(log), pack_charge(log, log.last)
  call('RPUSH', key, header, charge)
  if not is_new and try('LTRIM', key, '-2', '-1').err then
    call('DEL', key)
    call('RPUSH', key, header, charge)
    is_new = true
  end
  if is_new then
    local reply = try('PEXPIREAT', key, text_of(expires))
    if type(reply) == 'table' then
      call('DEL', key)
      error(reply.err, 0)
    end
  end
end

-- Writes charges that lie ahead as one of now, if there are any.
local function clamp(log, expires)
  if log.ahead and log.ahead.index == 1 then
    begin(log, log.stored, expires)
  elseif log.ahead then
    log.last = { index = log.ahead.index, time = now, units = log.stored }
    -- Written twice, to know that the second time will not be refused: between the two, the units are not in the list.
    local charge = pack_charge(log, log.last)
    call('RPUSH', log.key, charge)
    call('LTRIM', log.key, '0', log.ahead.index - 1)
    call('RPUSH', log.key, charge)
    if log.oldest.index == log.last.index then
      log.oldest = log.last
    end
    log.ahead = nil
  end
end

-- Drops charges that no longer count; some do.
local function trim(log)
  local oldest = log.oldest
  if oldest.index == 1 then
    return
  end
  call('LTRIM', log.key, oldest.index, '-1')
  log.base, log.start = now, (log.start + log.gone) % TOTALS
  local key, header, reply = log.key, pack_header(log), nil
--> put_header
  if type(reply) == 'table' then
    error(reply.err, 0)
  end
  log.last = { index = last_of(log).index - oldest.index + 1, time = log.last.time, units = log.stored - log.gone }
  log.oldest = { index = 1, time = oldest.time, units = oldest.units - log.gone }
  log.stored, log.gone = log.last.units, 0
end
--}
