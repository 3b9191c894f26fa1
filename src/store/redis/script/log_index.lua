-- The index of a subject's logs (limit.index), by which a Reset finds those whose windows are not common; logs of common windows
-- are found by their names, which are few. A string: when it was written I7, then per log: window I7, when the log expires I7.
--
-- Invariant: a log that there is, and that has to be listed, is listed, and its index expires no sooner than it does. So the
-- index is written when a log begins or ends, and when the log's expiry outgrows the one that is listed. It is written before the
-- log is, and after it where the log ends. Anything else under its name counts as an index that lists nothing.

--{ log_index
-- Maximum number of logs in an index: to read 14 KB takes some 0.2 ms. A config would need as many windows of logs that count as
-- one.
local LISTED_MAX = 1024

-- Lists a log until it expires then; `began` where there was none before, so that an index that was read before is another one
-- from then on. Takes it out where `expires` is nil.
local function list_log(limit, expires, began)
  local listed, logs, last = try('GET', limit.index), {}, expires or 0
  listed = type(listed) == 'string' and listed or ''
  for at = 8, #listed - 13, 14 do
    local window, ends = unpack('<I7I7', listed, at)
    -- One that expired is left out, but for a while after, as the clock may step back and the log not be collected yet.
    if window ~= limit.window and ends + window > now then
      logs[#logs + 1] = sub(listed, at, at + 13)
      last = max(last, ends)
    elseif window == limit.window and expires and ends >= expires and not began then
      return
    end
  end
  if expires and #logs >= LISTED_MAX then
    error('tollgate: the key has logs of ' .. LISTED_MAX .. ' uncommon windows already', 0)
  elseif expires then
    logs[#logs + 1] = pack('<I7I7', limit.window, expires)
  end
  if logs[1] then
    call('SET', limit.index, pack('<I7', now) .. table.concat(logs), 'PXAT', text_of(last))
  elseif listed ~= '' then
    call('DEL', limit.index)
  end
end
--}
