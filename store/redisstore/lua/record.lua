-- This file precedes each script. A script decides a batch of keys of one slot.
--
-- KEYS[1] is the token counter. For each request follow the name of the record
-- and, if the store has the compact form, the ring of sets of its bucket.
-- ARGV[1] is the length of a slice in microseconds and ARGV[2] is the grace in
-- milliseconds. Both are 0 without the compact form. ARGV[3] has the requests.
-- ARGV[4] has the terms that all requests of the call share; it is empty if they
-- differ. ARGV[5] is the length of each request; it is empty if they differ in
-- length. If there are sets, the member that represents each key follows.
--
-- The reply has one answer for each request. C means that the record is damaged
-- or that a name of the store has another type. X and a text mean that the
-- server refused a write. An empty answer means that the script left the answer
-- out, because this answer and earlier ones were long. Nothing was changed
-- then, and the caller asks again.
--
-- Requests and answers are one string each, because an argument or a reply for
-- each key costs more than to decide it. Each request and each answer follows
-- its length of 4 bytes.
--
-- record.go has the layout of a record. Times are microseconds of this server's
-- clock. Numbers are little-endian.

local pack, unpack, sub, byte = struct.pack, struct.unpack, string.sub, string.byte
local pcall, KEYS = redis.pcall, KEYS

local CLAIMED, HELD, UNKNOWN, DONE, ONE_STEP = 99, 104, 117, 100, 111 -- c h u d o
local NONE = string.rep('\0', 8) -- no token, no fingerprint
local DONE_LETTER = string.char(DONE)
local HEADER = 37                -- bytes with state, claim and fingerprint
local HOUR = 3600000
local LONG, REPLY_LIMIT = 1024, 4194304

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local slice, grace, requests = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local count = slice > 0 and #ARGV - 5 or #KEYS - 1
local stride = (#KEYS - 1) / count

-- held reports whether the record is claimed or unknown.
local function held(state)
  return state == CLAIMED or state == HELD or state == UNKNOWN
end

-- A token is its 8 bytes: to compare them costs less than to read the number.
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

-- foreign reports whether the server refused a command because another program
-- uses a name of the store with another type.
local function foreign(err)
  return string.find(err, 'WRONGTYPE', 1, true) ~= nil
end

-- own runs a command on a name of the store. It returns nil if the name is
-- foreign. Any other refusal ends the script.
local function own(...)
  local reply = pcall(...)
  if type(reply) ~= 'table' then
    return reply
  elseif not foreign(reply.err) then
    return redis.call(...) -- the server refuses it again
  end
end

local LEAST = { [CLAIMED] = 53, [HELD] = 53, [UNKNOWN] = 53, [DONE] = 34, [ONE_STEP] = 17 }

-- stated returns a record and its state. A value that is not a record has no
-- state. A held record whose lease has ended is unknown.
local function stated(rec)
  local state = byte(rec)
  if #rec < (LEAST[state] or math.huge) then
    return rec, nil
  end
  if state == HELD and lease_end(rec) <= now then
    return string.char(UNKNOWN) .. sub(rec, 2), UNKNOWN
  end
  return rec, state
end

-- load returns the record of a request and its state, or nil.
local function load(first)
  local rec = own('GET', KEYS[first])
  if rec then
    return stated(rec)
  end
  return rec == nil and '' or nil
end

-- digits returns an integer as text. Redis formats a number argument again for
-- each command, which costs as much as a short command.
local printed = {}
local function digits(n)
  local text = printed[n]
  if not text then
    text = string.format('%.0f', n)
    printed[n] = text
  end
  return text
end

-- store writes a record for px milliseconds, and 0 is forever. It returns the
-- text of the error if the server refuses.
local function store(key, rec, px)
  if px > 0 then
    return pcall('SET', key, rec, 'PX', digits(px)).err
  end
  return pcall('SET', key, rec).err
end

-- length_at reads a length. Few lengths differ, and a table costs less than unpack.
local lengths = {}
local function length_at(text, at)
  local word = sub(text, at, at + 3)
  local length = lengths[word]
  if not length then
    length = unpack('<I4', word)
    lengths[word] = length
  end
  return length
end

-- framed puts the length of an answer before it. An answer of one letter is kept.
local framed_letters = {}
local function framed(answer)
  local whole = framed_letters[answer]
  if not whole then
    whole = pack('<I4', #answer) .. answer
    if #answer == 1 then
      framed_letters[answer] = whole
    end
  end
  return whole
end

-- finished converts the record of a claimed key to a done one: with the start up to
-- first seen as given, without lease and owner, and with the result and its kind.
local function finished(rec, start, result)
  return start .. sub(rec, 30, 41 + length_at(rec, 38)) .. result
end

-- marked returns D if a key is done in the compact form. It returns C if a set
-- is foreign and no other set has the key, and otherwise nil. It looks into all
-- sets of the ring. The sets of old slices have expired. The set of the next
-- slice matters after the clock was set back.
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

-- add puts a key into the set of the current slice. The key's record is written
-- first, because a server may refuse this second write (see errors.go) and the
-- store must recognise a repetition then.
local function add(first, member)
  local ring = stride - 1
  local s = math.floor(now / slice)
  local set = KEYS[first + 1 + s % ring]
  local added = pcall('SADD', set, member)
  if type(added) == 'table' then
    return 'PARTLY ' .. added.err
  end
  if redis.call('PTTL', set) < 0 then
    -- The set is new. It expires when the window of its last key has ended. If
    -- the server refuses that, the next key sets the expiry.
    pcall('PEXPIREAT', set, digits((s + ring - 1) * slice / 1000))
  end
end

-- mark marks a key as done in the compact form. It keeps the record for the
-- grace, so that a repetition is recognised. If the set is foreign, the record
-- stays for the window.
local function mark(first, member, rec, window)
  local err = store(KEYS[first], rec, grace) or add(first, member)
  if err and foreign(err) then
    err = store(KEYS[first], rec, window)
    return err and 'PARTLY ' .. err
  end
  return err
end

-- repair adds a key whose record is there to its set, if the set refused the
-- key before.
local function repair(first, member, rec, window)
  local answer = marked(first, member)
  if answer == 'C' then
    return store(KEYS[first], rec, window)
  elseif not answer then
    return add(first, member)
  end
end

-- each decides the requests in their order. It calls decide with the index of
-- the request's first key, the record or nil, the state of the record, the first
-- and the last byte of the request, and the member. fetch replaces load. If it
-- returns a third value, that is the answer with its length before it.
local function each(decide, fetch)
  local answers, size, stop, length = {}, 0, 0, tonumber(ARGV[5])
  fetch = fetch or load
  for i = 1, count do
    local first, at = 2 + (i - 1) * stride, stop + 5
    stop = stop + 4 + (length or length_at(requests, stop + 1))
    local rec, state, whole = fetch(first, at, stop)
    if not whole then
      local answer = (state or not rec) and decide(first, rec, state, at, stop, ARGV[5 + i]) or 'C'
      if #answer > LONG and size > REPLY_LIMIT then
        -- Answers that change something are short.
        answer = ''
      end
      size = size + #answer
      whole = framed(answer)
    end
    answers[i] = whole
  end
  return table.concat(answers)
end

local function refused(err)
  return 'X' .. err
end

-- stale refuses a token and returns the start of the current record.
local function stale(rec)
  return 'S' .. sub(rec or '', 1, HEADER)
end
