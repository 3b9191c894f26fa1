-- token_bucket; see general/gcra.lua. A debt above a window is rare, and left to the rule.
elseif kind == 2 then
  local head, backlog = limit_head, 0
  if value and #value - from < 7 then
    head = nil
  elseif value then
    head, before = unpack('<BI7', value, from)
    from = from + 8
    backlog = before > now and before - now or 0
  end
  local debt = backlog + cost * step
  if head ~= limit_head or backlog > window then
    record = nil
  elseif debt > burst * step then
    answer = pack('<BI7', 48, backlog)
  elseif debt <= window then
    fresh_at = now + debt
    record, answer = pack('<BI7', head, fresh_at), pack('<BI7', 49, debt)
  end
