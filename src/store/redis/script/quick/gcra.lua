-- token_bucket; see general/gcra.lua. A debt above a window is rare, and left to the rule.
elseif kind == 2 then
  local backlog = 0
  if value then
    local head
    if #value - from >= 7 then
      head, before = unpack('<BI7', value, from)
      from = from + 8
    end
    if head ~= limit_head then
      break
    elseif before > now then
      backlog = before - now
    end
  end
  local debt = backlog + cost * step
  if backlog > window then
    break
  elseif debt > burst * step then
    fits = false
    place = place + 1
    numbers[place] = backlog
  elseif debt <= window then
    fits = true
    place = place + 1
    numbers[place] = debt
    fresh_at = now + debt
    record = pack('<BI7', limit_head, fresh_at)
  end
