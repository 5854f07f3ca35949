-- The board of a cluster in Redis: what one replica says all others read.
--
-- KEYS[1]: one stream, with one entry for all that a replica says at once.
-- ARGV: replica, what it says ("" for nothing), the entry that it has read last ("0" for none), how many entries are kept, and read at once,
--       and after how many milliseconds without a new one all are forgotten
-- Answer: the entry to go on from, then what others have said, oldest first

local key, replica, said, place, most_kept, most_read, kept_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

if said ~= "" then
  redis.call("XADD", key, "MAXLEN", "~", most_kept, "*", replica, said)
  redis.call("PEXPIRE", key, kept_ms)
end
local answer = { place }
local found = redis.call("XREAD", "COUNT", most_read, "STREAMS", key, place)
for _, entry in ipairs(found and found[1][2] or {}) do
  answer[1] = entry[1]
  if entry[2][1] ~= replica then answer[#answer + 1] = entry[2][2] end
end
return answer
