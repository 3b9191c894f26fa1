-- Decides the groups in their order and returns the reply. script.rs replaces each line `--> name` by the region of that name.

while groups > 0 or repeats > 0 do
  if repeats == 0 then
--> group
  end

  -- The short way. Each algorithm's region `decide` decides a request under one limit. The limit's record must begin where the
  -- record before it ended. The region sets `fits` and the numbers of the reply; for a charge, it also sets the new record, when
  -- that is fresh, and when the old record was. It leaves `fits` nil if it finds another state, or a rare case. The general way
  -- then decides, since nothing was written.
  local problem, denied
  charges = mode == 1
  while may_use_names and repeats > 0 do
--> names
  end
  if log_limit and n == 1 then
--> log_elements
    while repeats > 0 do
--> log_names
    end
  end
  local undecided = repeats > 0
  while limits and undecided and not problem do
--> requests
  end
  if answers > 0 and (undecided or repeats == 0) then
    final = final + 1
    replies[final] = pack('<' .. rep('B' .. rep('I7', number_count / answers - 1), answers), table_unpack(numbers, 1, number_count))
    answers, number_count = 0, 0
  end

  if undecided then
--> undecided
    next_packed, next_log, repeats = next_packed + has_packed, next_log + logs, repeats - 1
  end
end
if next_at <= #request or next_packed <= packed or next_log <= #keys then
  return { err = MALFORMED }
end
return table.concat(replies)
