-- Expiries collect garbage and nothing else, so they are coarse: a state that is fresh at fresh_at goes at the next multiple
-- of its unit, an eighth of its window, of a second at least. Most charges then leave the expiry as it was, and a write that
-- leaves it costs Redis a third of one that sets it.

--{ text_of
-- An expiry as Redis takes it: whole milliseconds, and one more so that it never drops a key before its state says so.
local function text_of(expires)
  return format('%d', floor(expires / 1000) + 1)
end
--}

--{ write
-- Sets write, which is made where a call first needs it; nearly all writes of most calls are the SETRANGE that stands where
-- records are decided.
if not write then
--> text_of
  -- The last expiry that was written: few stand in one call, and its text costs as much as a small command.
  local last_expires, last_text
  -- Writes a packed state that expires then, where it stood in before, if anything did, which expired at expired. If it has
  -- rings, value is its records, which are as long as before, and the rings stay. What Redis says against it, if anything.
  write = function(key, before, value, expires, expired, rings)
    local reply
    if rings or expires == expired and #value == #before then
      -- Redis may refuse either. An expiry that outlives the state does no harm, so it comes first.
      reply = expires ~= expired and try('PEXPIREAT', key, text_of(expires))
      if type(reply) ~= 'table' then
        reply = try('SETRANGE', key, '0', value)
      end
    elseif expires == expired then
      reply = try('SET', key, value, 'KEEPTTL')
    else
      if expires ~= last_expires then
        last_expires, last_text = expires, text_of(expires)
      end
      if before then
        reply = try('SET', key, value, 'PXAT', last_text)
      else
        -- A key of another type was read as if it were not there; GET makes SET fail on it.
        reply = try('SET', key, value, 'PXAT', last_text, 'GET')
      end
    end
    return type(reply) == 'table' and reply.err
  end
end
--}
