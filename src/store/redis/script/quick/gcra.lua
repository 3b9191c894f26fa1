-- token_bucket; see general/gcra.lua. A debt above a window is rare, and left to the rule.
elseif kind == 2 then
  local backlog, head, tat = 0, nil, nil
  if value and #value == 8 then
    head, tat = unpack('<BI7', value)
    backlog = tat > now and tat - now or 0
  end
  if not value or head == limit_head and backlog <= window then
    local debt = backlog + cost * emission
    if debt > burst * emission then
      reply = pack('<BI7', 48, backlog)
    elseif debt <= window then
      before, fresh_at = tat, now + debt
      after, reply = pack('<BI7', limit_head, fresh_at), pack('<BI7', 49, debt)
    end
  end
