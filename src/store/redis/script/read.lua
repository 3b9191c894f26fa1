-- Reads the packed states: whole, or if any may have rings, as much as the records take. Sets values, by the indices of keys;
-- false for a key that is not there, or of another type.

read_to = format('%d', read_to)
local values
if packed > #keys or #keys == 0 then
  -- By names, not keys. Nothing is written before this has read every name: one command each, since their slots differ.
  keys, values = #keys == 0 and { table_unpack(ARGV, 2) } or {}, {}
  if packed > #keys then
    return { err = MALFORMED }
  end
  local refused = {}
  for index, key in ipairs(keys) do
    local reply
    if index <= packed and has_rings then
      reply = try('GETRANGE', key, '0', read_to)
    else
      reply = try(index <= packed and 'GET' or 'LLEN', key)
    end
    if type(reply) ~= 'table' then
      values[index] = reply ~= '' and reply
    elseif string.find(reply.err, 'WRONGTYPE', 1, true) then
      values[index] = false
    else
      refused[#refused + 1] = pack('<I2', index - 1)
    end
  end
  if refused[1] then
    return 'R' .. table.concat(refused)
  end
elseif has_rings then
  values = {}
  for index = 1, packed do
    local value = try('GETRANGE', keys[index], '0', read_to)
    if #value == 0 then
      -- No key, or an error. A charge of a key of another type fails when it writes.
      if value ~= '' and not string.find(value.err, 'WRONGTYPE', 1, true) then
        return value
      end
      value = false
    end
    values[index] = value
  end
else
  values = packed > 0 and call('MGET', table_unpack(keys, 1, packed)) or {}
end
