-- The ledger of leases in Redis: the arithmetic of cluster/ledger.py, member.py and division.py, operation by operation, so that
-- both give the same answers to the last bit. The reasons stand there; here only what differs.
--
-- KEYS[1]: one hash, so that everything is in one slot. Field "@" is the ledger, fields "=NAME" are the replicas, in MessagePack,
-- which keeps every bit of a number. Numbers come and go as text of 17 digits.
-- ARGV: "leave", replica, epoch
--   or: "renew", replica, epoch, applied, lease_s, count of holdings, count of lines,
--       then key, whole, used, wanted, floor, lingers_s, seen ("" for none), seen_age_s, waits_s, held, "1" where shares are whole numbers,
--       then pool, queued, work_s, came, told
-- Answer: "granted", the time of Redis, epoch, number, replicas, count of shares, then key, amount, then pool, queued, work_s, came, told
--     or: "fenced", text / "unavailable", text / "left"

local LONGEST_STEP, ROTATION_S, MOST_REPLICAS = 0.5, 10.0, 256
local OLDEST_S, PROOF_PAUSE_S, SETTLE_S, MOST_ANSWERS, LONG_AGO = 1.0, 0.2, 0.25, 16, -1e9
local PART_S, MOST_PARTS = 0.25, 6
local SHOWN_S, LONGER = 2.0, 2.0
local ROUNDING, KEPT, LEAST_WAIT_S = 1e-9, 0.75, 0.001
local KEEP_MS = 86400000
-- The number of what is stored, to be raised with every change of it. Replicas of two versions share a hash while a cluster is upgraded.
local LAYOUT = 1

local key = KEYS[1]
local ledger, members, before, order

local function begin()
  ledger, members = { layout = LAYOUT, epochs = 0, now = 0, clock = false, lost_at = 0 }, {}
end

-- What another version has written, or what is no record at all, is lost state: for one lease each replica gets what it holds.
local function load()
  begin()
  before = {}
  local stored, is_ours = redis.call("HGETALL", key), true
  for index = 1, #stored, 2 do
    local is_read, value = pcall(cmsgpack.unpack, stored[index + 1])
    is_ours = is_ours and is_read and type(value) == "table"
    if stored[index] == "@" then
      ledger = value
    else
      members[string.sub(stored[index], 2)] = value
      before[string.sub(stored[index], 2)] = stored[index + 1]
    end
  end
  if not is_ours or ledger.layout ~= LAYOUT then begin() end
end

local function save()
  redis.call("HSET", key, "@", cmsgpack.pack(ledger))
  for name, member in pairs(members) do
    local packed = cmsgpack.pack(member)
    if packed ~= before[name] then redis.call("HSET", key, "=" .. name, packed) end
  end
  for name in pairs(before) do
    if members[name] == nil then redis.call("HDEL", key, "=" .. name) end
  end
  redis.call("PEXPIRE", key, KEEP_MS)
end

-- What is known of one replica.

local function bound(member, name)
  if member.left then
    return member.left[name] and member.left[name].amount or 0
  end
  local holding = member.holdings[name]
  local most = holding and holding.used or 0
  for _, answer in ipairs(member.answers) do
    most = math.max(most, answer.shares[name] or 0)
  end
  return most
end

local function go(member, amounts, now)
  local left = {}
  for name, amount in pairs(amounts) do
    local lingers_s = member.holdings[name].lingers_s
    if amount > 0 and lingers_s > 0 then
      left[name] = {
        amount = amount, ends_at = now + lingers_s, until_at = now + LONGER * lingers_s, settled_at = now + SETTLE_S,
      }
    end
  end
  member.left, member.lines = left, {}
end

local function bounds(member)
  local amounts = {}
  for name in pairs(member.left or member.holdings) do amounts[name] = bound(member, name) end
  return amounts
end

local function vanish(member)
  go(member, bounds(member), member.ends_at)
end

local function forget()
  for name, member in pairs(members) do
    if member.left then
      for each, left in pairs(member.left) do
        if not (left.amount > 0 and left.ends_at > ledger.now) then member.left[each] = nil end
      end
      if next(member.left) == nil then members[name] = nil end
    end
  end
end

local function by_epoch()
  order = {}
  for _, member in pairs(members) do order[#order + 1] = member end
  table.sort(order, function(one, other) return one.epoch < other.epoch end)
end

local function leave(name, epoch)
  local member = members[name]
  if member and member.epoch == epoch and not member.left then
    member.ends_at = ledger.now
    local amounts = {}
    for each, holding in pairs(member.holdings) do amounts[each] = holding.used end
    go(member, amounts, ledger.now)
    forget()
  end
end

-- How a number is divided.

local function level(amount, low, high)
  local filled, points = 0, {}
  for _, least in ipairs(low) do
    filled = filled + least
    points[#points + 1] = least
  end
  for _, most in ipairs(high) do points[#points + 1] = most end
  table.sort(points)
  for index = 1, #points - 1 do
    local here, above, rising = points[index], points[index + 1], 0
    for each = 1, #low do
      if low[each] <= here and here < high[each] then rising = rising + 1 end
    end
    local step = rising * (above - here)
    if rising > 0 and filled + step >= amount then return here + (amount - filled) / rising end
    filled = filled + step
  end
  return points[#points]
end

local function fill(amount, claims)
  local floors = 0
  for _, claim in ipairs(claims) do floors = floors + claim.floor end
  local scale = floors <= amount and 1 or amount / floors
  local low, high, wanted, shares = {}, {}, 0, {}
  for index, claim in ipairs(claims) do
    low[index] = claim.floor * scale
    high[index] = math.max(low[index], claim.wanted)
    wanted = wanted + high[index]
  end
  if wanted <= amount then
    local spare = (amount - wanted) / #claims
    for index, most in ipairs(high) do shares[index] = most + spare end
    return shares
  end
  local height = level(amount, low, high)
  for index, least in ipairs(low) do shares[index] = math.min(math.max(height, least), high[index]) end
  return shares
end

local function rounded(amount, shares, turn)
  local whole, sum = {}, 0
  for index, share in ipairs(shares) do
    whole[index] = math.floor(share + ROUNDING)
    sum = sum + whole[index]
  end
  local left, in_turn, place = math.floor(amount + ROUNDING) - sum, {}, {}
  for offset = 0, #shares - 1 do
    in_turn[offset + 1] = (turn + offset) % #shares + 1
    place[in_turn[offset + 1]] = offset
  end
  table.sort(in_turn, function(one, other)
    local first, second = whole[one] - shares[one], whole[other] - shares[other]
    return first < second or (first == second and place[one] < place[other])
  end)
  for _, index in ipairs(in_turn) do
    if left >= 1 and shares[index] - whole[index] > ROUNDING then
      whole[index] = whole[index] + 1
      left = left - 1
    end
  end
  return whole
end

local function served(free, missing, claims)
  local lines, wanted, per_s, age_s, more = {}, 0, 0, 0, {}
  for index, amount in ipairs(missing) do
    lines[index] = { wait_s = math.max(LEAST_WAIT_S, claims[index].waits_s), amount = amount }
    more[index] = lines[index]
  end
  table.sort(lines, function(one, other)
    return one.wait_s > other.wait_s or (one.wait_s == other.wait_s and one.amount > other.amount)
  end)
  for _, line in ipairs(lines) do
    wanted, per_s = wanted + line.amount, per_s + line.amount / line.wait_s
    if per_s > 0 then age_s = math.max(age_s, (wanted - free) / per_s) end
  end
  for index, line in ipairs(more) do
    more[index] = line.amount * math.max(0, 1 - age_s / line.wait_s)
  end
  return more
end

local function by_age(amount, claims)
  local missing, sum, kept, all_missing, waits = {}, 0, {}, 0, false
  for index, claim in ipairs(claims) do
    local own = math.max(claim.floor, math.min(claim.used, claim.wanted) * KEPT)
    kept[index] = { floor = claim.floor, wanted = own }
    sum = sum + own
    missing[index] = math.max(0, claim.wanted - own)
    all_missing = all_missing + missing[index]
    waits = waits or claim.waits_s ~= 0
  end
  local free = amount - sum
  if all_missing <= free or not waits then return fill(amount, claims) end
  if free <= 0 then return fill(amount, kept) end
  local shares = served(free, missing, claims)
  for index, own in ipairs(kept) do shares[index] = own.wanted + shares[index] end
  return shares
end

local function is_recovering(lease_s)
  return ledger.lost_at and ledger.now < ledger.lost_at + lease_s
end

local function share(member, name, comes_whole, lease_s)
  local claims, own, whole, gone, others = {}, 0, nil, 0, 0
  for _, each in ipairs(order) do
    local holding = each.holdings[name]
    if each.left then
      gone = gone + bound(each, name)
    elseif holding then
      whole = whole and math.min(whole, holding.whole) or holding.whole
      claims[#claims + 1] = holding
      if each == member then own = #claims end
    end
    if not each.left and each ~= member then others = others + bound(each, name) end
  end
  local rest, turn, shares = math.max(0, whole - gone), math.floor(ledger.now / ROTATION_S), nil
  if comes_whole then shares = rounded(rest, by_age(rest, claims), turn) else shares = fill(rest, claims) end
  local amount = math.max(0, math.min(shares[own], whole - gone - others))
  if is_recovering(lease_s) then amount = math.min(amount, bound(member, name)) end
  return comes_whole and math.floor(amount) or amount
end

-- What the engine's gauge shows.

local function least_used(member, name, since)
  local parts, least = member.lows[name], math.huge
  for index = #parts, 1, -1 do
    least = math.min(least, parts[index].least)
    if parts[index].begins <= since then break end
  end
  return least
end

local function add_used(parts, used)
  local part = parts[#parts]
  if used ~= part.least and ledger.now - part.begins >= PART_S then
    if #parts == MOST_PARTS then table.remove(parts, 1) end
    parts[#parts + 1] = { begins = ledger.now, least = used }
  else
    part.least = math.min(part.least, used)
  end
end

local function asked_at(member)
  for _, answer in ipairs(member.answers) do
    if answer.number == member.applied then return answer.given_at end
  end
  return LONG_AGO
end

local function learn(left, amount, read_at)
  if left.last_at then
    if read_at < math.max(left.settled_at, left.last_at + PROOF_PAUSE_S) then return end
    left.amount = math.min(left.amount, math.max(amount, left.last))
    left.ends_at = math.max(left.ends_at, math.min(left.until_at, read_at + SHOWN_S))
  end
  left.last, left.last_at = amount, read_at
end

local function read_gauge(member, name, holding)
  if not holding.seen or holding.seen_age_s > OLDEST_S then return end
  local read_at, known = asked_at(member) - holding.seen_age_s, 0
  for _, each in ipairs(order) do
    if not each.left and each.holdings[name] then known = known + least_used(each, name, read_at - SETTLE_S) end
  end
  for _, each in ipairs(order) do
    if each.left and each.left[name] and read_at >= each.ends_at then
      learn(each.left[name], math.max(0, holding.seen - known), read_at)
    end
  end
end

-- A renewal.

local function tick(lease_s)
  local time = redis.call("TIME")
  local clock = tonumber(time[1]) + tonumber(time[2]) / 1000000
  local step_s = ledger.clock and clock - ledger.clock or 0
  ledger.clock = clock
  if 0 < step_s and step_s <= LONGEST_STEP * lease_s then ledger.now = ledger.now + step_s end
  for _, member in pairs(members) do
    if not member.left and member.ends_at <= ledger.now then vanish(member) end
  end
  forget()
end

local function join(renewal, known)
  local count = 0
  for _ in pairs(members) do count = count + 1 end
  if not known and count >= MOST_REPLICAS then
    return nil, "unavailable", "the store knows " .. MOST_REPLICAS .. " replicas already, and keeps no more"
  end
  ledger.epochs = math.max(ledger.epochs, renewal.epoch) + 1
  local held = {}
  for name, holding in pairs(renewal.holdings) do held[name] = holding.held end
  local answers = { { number = renewal.applied, given_at = LONG_AGO, shares = held } }
  if known then answers[2] = { number = known.number, given_at = LONG_AGO, shares = bounds(known) } end
  local number = math.max(renewal.applied, known and known.number or 0)
  local member = { epoch = ledger.epochs, number = number, answers = answers, lows = {}, left = false }
  members[renewal.replica] = member
  return member
end

local function find(renewal)
  local member = members[renewal.replica]
  local is_ahead = renewal.epoch > ledger.epochs
    or (member and renewal.epoch == member.epoch and renewal.applied > member.number)
  if is_ahead then
    ledger.lost_at = ledger.now
  elseif not member then
    if renewal.epoch ~= 0 and not is_recovering(renewal.lease_s) then
      return nil, "fenced", "this replica's leases have ended"
    end
  elseif renewal.epoch ~= 0 then
    if renewal.epoch ~= member.epoch or member.left then
      return nil, "fenced", "this replica's leases have ended"
    end
    if renewal.applied < member.applied then
      return nil, "fenced", "a later renewal of this replica came first"
    end
    return member
  end
  return join(renewal, member)
end

local function report(member, renewal)
  member.applied, member.lines, member.ends_at = renewal.applied, renewal.lines, ledger.now + renewal.lease_s
  local answers, lows = {}, {}
  for _, answer in ipairs(member.answers) do
    if answer.number >= renewal.applied then answers[#answers + 1] = answer end
  end
  for name, holding in pairs(renewal.holdings) do
    lows[name] = member.lows[name] or { { begins = ledger.now, least = holding.used } }
    add_used(lows[name], holding.used)
  end
  member.answers, member.lows, member.holdings = answers, lows, renewal.holdings
end

local function answer(member, shares)
  member.number = member.number + 1
  local answers = member.answers
  answers[#answers + 1] = { number = member.number, given_at = ledger.now, shares = shares }
  if #answers > MOST_ANSWERS then
    local first = table.remove(answers, 1)
    for name, amount in pairs(first.shares) do
      answers[1].shares[name] = math.max(amount, answers[1].shares[name] or 0)
    end
    answers[1].given_at = first.given_at
  end
end

local function text(number)
  return string.format("%.17g", number)
end

local function add_lines(reply, member)
  local pools, names = {}, {}
  for _, each in ipairs(order) do
    for _, line in ipairs(each ~= member and not each.left and each.lines or {}) do
      if not pools[line[1]] then
        pools[line[1]] = { 0, 0, 0, 0 }
        names[#names + 1] = line[1]
      end
      local sum = pools[line[1]]
      for field = 1, 4 do sum[field] = sum[field] + line[field + 1] end
    end
  end
  for _, pool in ipairs(names) do
    reply[#reply + 1] = pool
    for field = 1, 4 do reply[#reply + 1] = text(pools[pool][field]) end
  end
end

local function renew(renewal)
  tick(renewal.lease_s)
  local member, refused, reason = find(renewal)
  if not member then return { refused, reason } end
  report(member, renewal)
  by_epoch()
  for _, name in ipairs(renewal.names) do read_gauge(member, name, renewal.holdings[name]) end
  local live, shares = 0, {}
  for _, each in ipairs(order) do
    if not each.left then live = live + 1 end
  end
  local reply = { "granted", text(ledger.clock), text(member.epoch), text(member.number + 1), text(live), text(#renewal.names) }
  for _, name in ipairs(renewal.names) do
    shares[name] = share(member, name, renewal.comes_whole[name], renewal.lease_s)
    reply[#reply + 1] = name
    reply[#reply + 1] = text(shares[name])
  end
  answer(member, shares)
  add_lines(reply, member)
  return reply
end

local function read_renewal()
  local at = 8
  local renewal = {
    replica = ARGV[2], epoch = tonumber(ARGV[3]), applied = tonumber(ARGV[4]), lease_s = tonumber(ARGV[5]),
    names = {}, holdings = {}, comes_whole = {}, lines = {},
  }
  for index = 1, tonumber(ARGV[6]) do
    local name = ARGV[at]
    renewal.names[index] = name
    renewal.holdings[name] = {
      whole = tonumber(ARGV[at + 1]), used = tonumber(ARGV[at + 2]), wanted = tonumber(ARGV[at + 3]),
      floor = tonumber(ARGV[at + 4]), lingers_s = tonumber(ARGV[at + 5]), seen = tonumber(ARGV[at + 6]) or false,
      seen_age_s = tonumber(ARGV[at + 7]), waits_s = tonumber(ARGV[at + 8]), held = tonumber(ARGV[at + 9]),
    }
    renewal.comes_whole[name] = ARGV[at + 10] == "1"
    at = at + 11
  end
  for index = 1, tonumber(ARGV[7]) do
    renewal.lines[index] = { ARGV[at] }
    for field = 1, 4 do renewal.lines[index][field + 1] = tonumber(ARGV[at + field]) end
    at = at + 5
  end
  return renewal
end

load()
local reply = { "left" }
if ARGV[1] == "leave" then
  leave(ARGV[2], tonumber(ARGV[3]))
else
  reply = renew(read_renewal())
end
save()
return reply
