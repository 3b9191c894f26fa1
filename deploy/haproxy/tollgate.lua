-- Asks tollgate whether a request may pass. HAProxy has no subrequests of its own; this needs HAProxy 2.5 or later with Lua.
--
-- It sets txn.tollgate_status, and for each field below a variable, such as txn.tollgate_ratelimit. A status of 0 means that
-- tollgate did not answer.
--
-- It uses a socket, and not core.httpclient: that one tries for three seconds to reach a tollgate that is gone.

local FIELDS = { ["ratelimit"] = true, ["ratelimit-policy"] = true, ["retry-after"] = true }
-- In seconds. Far above store.deadline, within which tollgate answers.
local TIMEOUT = 0.25
-- Most fields that an answer may have; tollgate sends seven at most.
local FIELDS_MAX = 32

local function escape(text)
  return (text:gsub("[^%w%-%._~]", function(letter) return string.format("%%%02X", letter:byte()) end))
end

-- The status of the answer and its fields; nil when there is none.
local function get(host, port, target)
  local socket = core.tcp()
  socket:settimeout(TIMEOUT)
  if not socket:connect(host, port) or not socket:send("GET " .. target .. " HTTP/1.0\r\n\r\n") then
    socket:close()
    return nil
  end
  local status = tonumber((socket:receive("*l") or ""):match("^HTTP/1%.%d (%d%d%d)"))
  local fields = {}
  for _ = 1, FIELDS_MAX do
    local name, value = (socket:receive("*l") or ""):match("^([^:]+):%s*(.-)%s*$")
    if not name then break end
    fields[name:lower()] = value
  end
  socket:close()
  return status, fields
end

-- Arguments: host and port of tollgate's HTTP, the plan, and the variable that holds the key.
local function ask(txn, host, port, plan, variable)
  local key = txn:get_var(variable) or ""
  local status, fields = get(host, tonumber(port), "/v1/check?key=" .. escape(key) .. "&plan=" .. escape(plan))
  txn:set_var("txn.tollgate_status", status or 0)
  for name, value in pairs(fields or {}) do
    if FIELDS[name] then
      txn:set_var("txn.tollgate_" .. name:gsub("-", "_"), value)
    end
  end
end

core.register_action("tollgate", { "http-req" }, ask, 4)
