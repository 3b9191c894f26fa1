-- token_bucket; see general/gcra.lua. Its prefix, which holds its rate, is read as a number. A debt above a window, or of another
-- rate, is rare, and left to the rule.
elseif kind == 7 then
  local backlog = 0
  if value then
    if #value - from < least then
      break
    end
    local head, after
    head, before, after = unpack(bucket, value, from)
    if head ~= limit_head then
      break
    end
    from = after
    if before > now then
      backlog = before - now
    end
  end
  local debt = backlog + cost * step
  if backlog > window then
    break
  elseif debt > burst * step or not charges then
    fits = debt <= burst * step
    place = place + 1
    numbers[place] = backlog
  elseif debt <= window then
    fits = true
    place = place + 1
    numbers[place] = debt
    fresh_at = now + debt
    record = pack(bucket, limit_head, fresh_at)
  end
