-- What all scripts share. A script decides a batch of keys of one slot.
--
-- KEYS[1] is the counter of tokens. For each request follow the record and,
-- where the store has the compact form, the ring of sets of its bucket.
-- ARGV[1] and ARGV[2] are the length of a slice in microseconds and the grace
-- in milliseconds, 0 without the compact form. For each request follows one
-- packed string and, where there are sets, the member that stands for the key.
-- The reply is one string for each request. C says that the record is damaged
-- or a name of ours foreign, X and a text that the server refused to write. An
-- empty one is left out: it is long, others before it were too, and nothing was
-- changed; the caller asks for it again.
--
-- The layout of a record is in record.go. Times are microseconds of this
-- server's clock, numbers are little-endian.

local pack, unpack, sub, byte = struct.pack, struct.unpack, string.sub, string.byte

local CLAIMED, HELD, UNKNOWN, DONE, ONE_STEP = 99, 104, 117, 100, 111 -- c h u d o
local NONE = string.rep('\0', 8) -- no token, no fingerprint
local HEADER = 37                -- bytes that show state, claim and fingerprint
local HOUR = 3600000
local LONG, REPLY_LIMIT = 1024, 4194304

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local slice, grace = tonumber(ARGV[1]), tonumber(ARGV[2])
local fields = slice > 0 and 2 or 1
local count = (#ARGV - 2) / fields
local stride = (#KEYS - 1) / count

-- held says whether the record is claimed, by whomever.
local function held(state)
  return state == CLAIMED or state == HELD or state == UNKNOWN
end

local function token_of(rec)
  return sub(rec, 6, 13)
end

local function lease_end(rec)
  return (unpack('<I8', rec, 22))
end

local PRINT_AT = { [DONE] = 22, [ONE_STEP] = 18 }

local function print_of(rec)
  local at = PRINT_AT[byte(rec)] or 30
  return sub(rec, at, at + 7)
end

local function matches(a, b)
  return a == b or a == NONE or b == NONE or a == '' or b == ''
end

-- foreign says whether the server refused because a name of ours has another
-- type: that is somebody else's doing.
local function foreign(err)
  return string.find(err, 'WRONGTYPE', 1, true) ~= nil
end

-- own runs a command on a name of ours. It returns nil if the name is foreign;
-- any other refusal ends the script.
local function own(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' then
    return reply
  elseif not foreign(reply.err) then
    return redis.call(...) -- which is refused again
  end
end

local LEAST = { [CLAIMED] = 53, [HELD] = 53, [UNKNOWN] = 53, [DONE] = 34, [ONE_STEP] = 17 }

-- load returns a record and its state, or nil; of what is no record there is no
-- state. A lease that ended in a record with hold has made it unknown.
local function load(key)
  local rec = own('GET', key)
  if rec == nil then
    return '', nil
  elseif not rec then
    return nil, nil
  end
  local state = byte(rec)
  if #rec < (LEAST[state] or math.huge) then
    return rec, nil
  end
  if state == HELD and lease_end(rec) <= now then
    return string.char(UNKNOWN) .. sub(rec, 2), UNKNOWN
  end
  return rec, state
end

-- digits returns a whole number as text. A number that is handed to the server
-- is printed anew for each command, which costs as much as a short command.
local printed = {}
local function digits(n)
  local text = printed[n]
  if not text then
    text = string.format('%.0f', n)
    printed[n] = text
  end
  return text
end

-- store writes a record for px milliseconds, 0 is forever. It returns the text
-- of the error if the server refuses.
local function store(key, rec, px)
  if px > 0 then
    return redis.pcall('SET', key, rec, 'PX', digits(px)).err
  end
  return redis.pcall('SET', key, rec).err
end

-- finished returns the record of a claimed key as one that is done: without
-- lease and owner, with the result and, before it, its kind.
local function finished(rec, token, result)
  local ids = unpack('<I4', rec, 38)
  return string.char(DONE) .. sub(rec, 2, 5) .. token .. sub(rec, 14, 21) .. sub(rec, 30, 41 + ids) .. result
end

-- marked returns D if a key is done in the compact form, C if a set is foreign
-- and no other one has the key, and else nil. All sets of the ring are asked:
-- those of old slices have expired, and that of the next one covers a clock that
-- was set back.
local function marked(first, member)
  local answer
  for i = first + 1, first + stride - 1 do
    local found = own('SISMEMBER', KEYS[i], member)
    if found == 1 then
      return 'D'
    elseif found == nil then
      answer = 'C'
    end
  end
  return answer
end

-- add puts a key into the set of this slice. It comes after the key's record:
-- a server may refuse this second write (see errors.go), and whoever asks again
-- must be recognised then.
local function add(first, member)
  local ring = stride - 1
  local s = math.floor(now / slice)
  local set = KEYS[first + 1 + s % ring]
  local added = redis.pcall('SADD', set, member)
  if type(added) == 'table' then
    return 'PARTLY ' .. added.err
  end
  if redis.call('PTTL', set) < 0 then
    -- The set begins: it ends when the last of its keys need not be known. If
    -- that is refused, the next key sees to it.
    redis.pcall('PEXPIREAT', set, digits((s + ring - 1) * slice / 1000))
  end
end

-- mark makes a key done in the compact form, and keeps the record for a while,
-- so that who asks again is recognised. Without a set, which is foreign, the
-- record stays for the window.
local function mark(first, member, rec, window)
  local err = store(KEYS[first], rec, grace) or add(first, member)
  if err and foreign(err) then
    err = store(KEYS[first], rec, window)
    return err and 'PARTLY ' .. err
  end
  return err
end

-- mend adds a key whose record is there and which should be in a set, if the
-- set refused it before.
local function mend(first, member, rec, window)
  local answer = marked(first, member)
  if answer == 'C' then
    return store(KEYS[first], rec, window)
  elseif not answer then
    return add(first, member)
  end
end

-- each decides the requests in their order: decide gets the place of the
-- request's first key, its record, if there is one, the record's state, the
-- request and the member.
local function each(decide)
  local answers, size = {}, 0
  for i = 1, count do
    local first, at = 2 + (i - 1) * stride, 3 + (i - 1) * fields
    local rec, state = load(KEYS[first])
    local answer = 'C'
    if state or not rec then
      answer = decide(first, rec, state, ARGV[at], ARGV[at + 1])
    end
    if #answer > LONG and size > REPLY_LIMIT then
      -- Whatever changes something has a short answer.
      answer = ''
    end
    size = size + #answer
    answers[i] = answer
  end
  return answers
end

local function refused(err)
  return 'X' .. err
end

-- stale refuses a token with what is there instead.
local function stale(rec)
  return 'S' .. sub(rec or '', 1, HEADER)
end
