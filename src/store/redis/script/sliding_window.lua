-- sliding_window: at most limit.quota in any window, in bounded memory. Twin of src/algorithm/sliding_window.rs.
-- Payload: total I6 (units in all runs), n B (runs, at most precision + 1), then n runs of at I7, units I5, oldest first,
-- times rising strictly. Reading: used, frees_in, fresh_in.
local function sliding_window(precision)
  local self = {}
  local RUN = 12

  function self.size(value, at)
    return 7 + RUN * string.byte(value, at + 6)
  end

  function self.fresh_at(value, at, window)
    local n = string.byte(value, at + 6)
    return struct.unpack('<I7', value, at + 7 + RUN * (n - 1)) + window
  end

  local function run(state, index)
    return struct.unpack('<I7I5', state.runs, RUN * (index - 1) + 1)
  end

  local function keep_first(state, n)
    state.runs = string.sub(state.runs, 1, RUN * n)
    state.n = n
  end

  local function append(state, at, units)
    state.runs = state.runs .. struct.pack('<I7I5', at, units)
    state.n = state.n + 1
    state.newest = at
  end

  -- Adds units at now, to the newest run when that is of now too.
  local function push(state, units)
    if state.newest == now then
      local _, before = run(state, state.n)
      keep_first(state, state.n - 1)
      units = units + before
    end
    append(state, now, units)
  end

  -- Moves runs that lie ahead to now.
  local function clamp(state)
    local units = 0
    while state.n > 0 and state.newest > now do
      local _, ahead = run(state, state.n)
      units = units + ahead
      keep_first(state, state.n - 1)
      state.newest = state.n > 0 and run(state, state.n) or -1
    end
    push(state, units)
    state.clamped = true
  end

  -- state.expired runs of state.gone units no longer count.
  function self.view(value, at, limit)
    local state = { total = 0, n = 0, runs = '', newest = -1, expired = 0, gone = 0 }
    if at then
      state.total, state.n = struct.unpack('<I6B', value, at)
      state.runs = string.sub(value, at + 7, at + 6 + RUN * state.n)
      state.newest = run(state, state.n)
      if state.newest > now then
        clamp(state)
      end
      for index = 1, state.n do
        local taken, units = run(state, index)
        if taken + limit.window > now then
          break
        end
        state.expired = index
        state.gone = state.gone + units
      end
    end
    state.used = state.total - state.gone
    return state
  end

  function self.fits(state, limit, cost)
    return state.used + cost <= limit.quota
  end

  local function merge_newest(state, cell)
    local older, before = run(state, state.n - 1)
    local newest, units = run(state, state.n)
    if math.floor(older / cell) ~= math.floor(newest / cell) then
      return false
    end
    keep_first(state, state.n - 2)
    append(state, newest, before + units)
    return true
  end

  local function merge_all(state, cell)
    local merged = { runs = '', n = 0 }
    local last, units = run(state, 1)
    for index = 2, state.n do
      local taken, more = run(state, index)
      if math.floor(last / cell) == math.floor(taken / cell) then
        units = units + more
      else
        append(merged, last, units)
        units = more
      end
      last = taken
    end
    append(merged, last, units)
    state.runs, state.n = merged.runs, merged.n
  end

  function self.charge(state, limit, cost)
    state.runs = string.sub(state.runs, RUN * state.expired + 1)
    state.n = state.n - state.expired
    state.expired, state.gone = 0, 0
    push(state, cost)
    state.used = state.used + cost
    state.total = state.used
    if state.n > precision then
      local cell = math.ceil(limit.window / precision)
      if not merge_newest(state, cell) then
        merge_all(state, cell)
      end
    end
  end

  function self.save(state, limit)
    return struct.pack('<I6B', state.total, state.n) .. state.runs, state.newest + limit.window
  end

  local function frees_in(state, limit, cost)
    local units = state.used + cost - limit.quota
    if units <= 0 then
      return 0
    end
    for index = state.expired + 1, state.n do
      local taken, more = run(state, index)
      units = units - more
      if units <= 0 then
        return taken + limit.window - now
      end
    end
    return 0
  end

  function self.reading(state, limit, cost, charged)
    local fresh_in = state.used > 0 and state.newest + limit.window - now or 0
    return state.used, charged and 0 or frees_in(state, limit, cost), fresh_in
  end

  return self
end
