-- Joint decisions: requests of several names that are charged together, or of which none is charged. request.lua has their layout.
-- Each is written at once, since its names may be those of the next one.
--
-- Most go a short way: each plan has one limit, each name stands in the decision once, and the states are usual ones. They are
-- statements in a loop, as in short/names.lua. All others go the general way, see joint.lua.

do
--{ joint_names
-- The present group stands for all joint decisions of the call. It has a log if they have one.
first_logs, last_logs, names, single_limits, logs_of = {}, {}, {}, {}, {}
fits_of, charged_of, names_of, records_of, rests_of, expires_of, expired_of = {}, {}, {}, {}, {}, {}, {}
formats_of = { '<BI7', '<BI7I7', '<BI7I7I7' }
names_count, states_count, joints, at = unpack('<BBI2', request, first_at)
first_state, several = next_packed, nil
if logs > 0 then
  local counts = sub(request, at, at + names_count - 1)
  if counts == rep('\0', states_count) .. rep('\1', names_count - states_count) then
    logs_at, next_log, at = next_log - states_count, next_log + names_count - states_count, at + names_count
  else
--> joint_log_names
  end
  if next_log > #keys + 1 then
    return { err = MALFORMED }
  end
--> log_elements
end
next_packed = next_packed + states_count
packed_end = next_packed
if packed_end > packed + 1 or states_count > names_count then
  return { err = MALFORMED }
end
--}
end

do
--{ joint_log_names
-- Finds the logs of each name, however many they are.
for name = 0, names_count - 1 do
  local log_count = byte(request, at)
  if not log_count then
    return { err = MALFORMED }
  end
  at, first_logs[name], last_logs[name] = at + 1, next_log, next_log + log_count - 1
  next_log = next_log + log_count
end
--}

--{ joint_short
-- Decides joint decisions in their order, up to one that needs the general way.
needs_general = false
while decision < joints and not needs_general do
  decision = decision + 1
  joint_mode, count = byte(request, at, at + 1)
  if not count or joint_mode > UNDO then
    return { err = MALFORMED }
  end
  places, tells_instant = places + count, tells_instant or joint_mode == CHARGE_OF_PART
  begin, failed, written = at + 2, nil, 0
  -- `is_retold`: the whole is denied, and those that fit are read once more, without a charge.
  local index, all_fit, is_retold = 0, true, false
  at, needs_general = begin, joint_mode == UNDO
  while index < count and not needs_general do
    index = index + 1
    local name, plan, flags, place
    name, plan, flags, place, cost, at = unpack('<BBBI2I5', request, at)
    if not (is_retold and not fits_of[index]) then
--> joint_test
    end
    if index == count and not all_fit and joint_mode ~= 0 and not is_retold then
      is_retold, index, at = true, 0, begin
    end
  end
  if not needs_general and joint_mode ~= 0 and all_fit then
--> joint_store
  end
end
next_packed = packed_end
--}

--{ joint_test
-- Tests one request. Sets `fits_of`, its reply, and what a charge is to write.
local limit, known, fits = single_limits[plan], names[name], nil
if limit == nil then
--> single_limit
end
next_packed = name < states_count and first_state + name
charges = joint_mode ~= 0 and flags <= 1 and not is_retold
if not limit or flags >= REPEATED or known and (known.problem or limit[1] == SLIDING_LOG) then
  -- A name that stands in it twice needs sums. What the general way knows of a log is written by it alone.
elseif logs > 0 and limit[1] == SLIDING_LOG then
--> joint_log
else
--> joint_state
end
needs_general = fits == nil
if fits == false and charges and limit[13] then
  -- The denial may begin a block.
  needs_general = true
elseif not is_retold then
  fits_of[index], charged_of[index] = fits, fits and charges
  all_fit = all_fit and (fits or flags % 2 == 1)
end
--}

--{ joint_state
-- Tests a request by a name's state, which has to be one record.
if limit ~= present_limit then
  present_limit = limit
  kind, precision, prefix, limit_head, window, quota, burst, unit, step, bucket, bucket_end, calendar = table_unpack(limit, 1, 12)
end
local value = next_packed and values[next_packed]
local from, last_number, record, fresh_at, before = 1, 0, nil, nil, nil
rings, length, may_merge = false, value and #value, false
repeat
  if not (next_packed and (value or charges or is_retold)) or prefix and value and sub(value, 1, #prefix) ~= prefix then
    -- A peek of a key that is not there may be one of another type.
    break
  end
  from = prefix and #prefix + 1 or 1
  if kind == SLIDING_LOG then
    break
--> decide
  end
until true
if fits and charges then
  names_of[index], records_of[index] = name, prefix and prefix .. record or record
  if value and from <= #value and not (rings and #records_of[index] == from - 1) then
    -- It has records of other limits.
    fits = nil
  else
    rests_of[index] = rings and sub(value, from)
    expires_of[index], expired_of[index] = fresh_at - fresh_at % unit + unit, before and before - before % unit + unit
  end
end
replies[final + 1 + place] = fits ~= nil and pack(formats_of[last_number], fits and 49 or 48, numbers[1], numbers[2], numbers[3])
--}

repeat
--{ joint_log
-- Tests a request by a name's only log, which is in no index. Sets `logs_of` to what its charge has to know.
if limit ~= present_limit then
  -- The other fields of a log's limit are not used.
  present_limit, prefix, window, quota, unit = limit, limit[3], limit[5], limit[6], limit[8]
end
local key, problem_of, used, frees_in, fresh_in
if logs_at then
  key = name >= states_count and keys[logs_at + name]
else
  key = first_logs[name] == last_logs[name] and keys[first_logs[name]]
end
repeat
  if prefix or not key or next_packed and values[next_packed] then
    break
  end
--> log_decide
  records_of[index] = false
  if fits and charges then
    local log_of = logs_of[index]
    if not log_of then
      log_of = { key, head, newest, gone, oldest_at, start, stored, cost, limit }
      logs_of[index] = log_of
    else
      log_of[1], log_of[2], log_of[3], log_of[4], log_of[5] = key, head, newest, gone, oldest_at
      log_of[6], log_of[7], log_of[8], log_of[9] = start, stored, cost, limit
    end
    local charged_replies, after = limit[14], used + cost
    local reply = charged_replies[after]
    if not reply then
      reply = pack('<BI7I7I7', 49, after, 0, window)
      charged_replies[after] = reply
    end
    replies[final + 1 + place] = reply
  else
--> log_numbers
    replies[final + 1 + place] = pack('<BI7I7I7', fits and 49 or 48, used, frees_in, fresh_in)
  end
until true
--}
until true

--{ single_limit
-- Sets `limit` to the fields of a plan's limit, where it has one; else to false. Behind the fields are whether it has a block, and
-- the replies to charges of a log, by what is used then: most names are used little, so a reply serves several.
local limits_at = plan_at[plan]
limit = false
local limits_count = limits_at and byte(request, limits_at)
if limits_count == 1 or limits_count == 129 then
  local at = limits_at + 1
--> limit
  limit = { kind, precision, prefix, limit_head, window, quota, burst, unit, step, bucket or false, bucket_end or 0, calendar,
    limits_count > 128, kind == SLIDING_LOG and {} }
  present_limit = limit
end
single_limits[plan] = limit
--}

--{ joint_store
-- Writes what is charged. Where Redis refuses one, those before it are undone the general way.
for index = 1, count do
  if charged_of[index] and not failed then
    local record = records_of[index]
    if not record then
--> joint_store_log
    else
--> joint_store_state
    end
    written = failed and written or index
  end
end
needs_general = failed
--}

--{ joint_store_state
-- Writes a name's state.
local name, rest = names_of[index], rests_of[index]
local state = first_state + name
local value = values[state]
if expires_of[index] == expired_of[index] and (rest or #record == #value) then
  local reply = try('SETRANGE', keys[state], '0', record)
  failed = type(reply) == 'table' and reply.err
else
--> write
  failed = write(keys[state], value, record, expires_of[index], expired_of[index], rest)
end
if not failed then
  values[state] = rest and record .. rest or record
  if names[name] then
    names[name].value, names[name].group = values[state], false
  end
end
--}

--{ joint_store_log
-- Charges a name's log.
local log_of = logs_of[index]
local key, head, newest, gone, oldest_at = log_of[1], log_of[2], log_of[3], log_of[4], log_of[5]
local start, stored, problem_of, frees_in, fresh_in, fits, limit = log_of[6], log_of[7], nil, nil, nil, nil, log_of[9]
local used = stored - gone
cost = log_of[8]
if limit ~= present_limit then
  present_limit, prefix, window, quota, unit = limit, limit[3], limit[5], limit[6], limit[8]
end
repeat
--> log_charge
until true
failed = problem_of
--}
end
