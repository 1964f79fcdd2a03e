-- What wrk sends and counts: wrk ... -s load.lua URL -- BODIES PATH DELAY_MS COUNT
-- BODIES has a request body a line; they are sent in turn. The numbers go to standard output as one line of JSON.
local counted = { "accepted", "shed", "shed_without_retry_after", "other" }

local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function init(args)
  requests, sent, mean_delay_ms = {}, 0, tonumber(args[3])
  local headers = { ["Content-Type"] = "application/json" }
  for body in io.lines(args[1]) do
    table.insert(requests, wrk.format("POST", args[2], headers, body))
  end
  for _, name in ipairs(counted) do
    _G[name] = 0
  end
  if mean_delay_ms > 0 then
    math.randomseed(1)
    delay = paced
  end
  -- Having each response handed over costs wrk time of its own.
  if args[4] == "count" then
    response = count
  end
end

function request()
  sent = sent + 1
  return requests[(sent - 1) % #requests + 1]
end

function paced()
  return math.floor(mean_delay_ms * (0.5 + math.random()) + 0.5)
end

function count(status, headers)
  if status == 200 then
    accepted = accepted + 1
  elseif status ~= 503 then
    other = other + 1
  elseif headers["Retry-After"] or headers["retry-after"] then
    shed = shed + 1
  else
    shed_without_retry_after = shed_without_retry_after + 1
  end
end

function done(summary, latency)
  local sums = {}
  for _, name in ipairs(counted) do
    sums[name] = 0
    for _, thread in ipairs(threads) do
      sums[name] = sums[name] + thread:get(name)
    end
  end
  io.write(string.format(
    '{"requests": %d, "seconds": %.6f, "median_ms": %.3f, "p99_ms": %.3f, "largest_ms": %.3f, "refused": %d, '
      .. '"broken": %d, "accepted": %d, "shed": %d, "shed_without_retry_after": %d, "other": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    latency.max / 1e3, summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout,
    sums.accepted, sums.shed, sums.shed_without_retry_after, sums.other
  ))
end
