-- Decides names that have one log and nothing else.

while repeats > 0 do
--{ log_names
  -- Whether the request fits, and what is answered; nothing is done where the log is one that needs more than this.
  local key, problem_of, fits, used, frees_in, fresh_in = keys[next_log], nil, nil, nil, nil, nil
  repeat
    if has_blocks and values[next_packed] then
      break
    end
--> log_decide
    if fits and charges then
--> log_charge
    else
--> log_numbers
    end
  until true
  problem = problem_of
  if problem or fits == nil or has_blocks and charges and not fits then
    log_limit = not has_blocks and log_limit
    break
  end
  numbers[number_count + 1] = fits and 49 or 48
  numbers[number_count + 2], numbers[number_count + 3], numbers[number_count + 4] = used, frees_in, fresh_in
  number_count, answers = number_count + 4, answers + 1
  next_packed, next_log = next_packed + has_packed, next_log + logs
  repeats = repeats - 1
--}
end

--{ log_requests
-- Whatever the log is, and however many requests.
log_limit.log, log_limit.index = keys[next_log], log_limit.is_indexed and keys[next_log + logs - 1]
decided, result = pcall(log.decide, log_limit, first_at, n)
if decided then
  final = final + 1
  replies[final] = result
end
--}
