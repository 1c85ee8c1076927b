-- Claims keys. A request has: flags; lease or, for a claim with Done, window in
-- milliseconds; the time after which the message is late; fingerprint; ids,
-- owner or, for a claim with Done, the record to write.

local DONE_FLAG, HOLD_FLAG, COMPACT_FLAG = 1, 2, 4
local counter = tonumber(redis.call('GET', KEYS[1])) or 0

-- All claims of a run have one token. A run grants no key twice, because no lease
-- ends during a run.
local number = counter < now and now or counter + 1
local token, granted = pack('<I8', number), false

local function has(flags, flag)
  return flags % (2 * flag) >= flag
end

-- head_of returns the record of a claim up to the lease end, and how long the
-- record is kept: the attempt count is kept for an hour after the lease ends, and
-- forever with hold.
local function head_of(flags, attempt, seen, span)
  local hold = has(flags, HOLD_FLAG)
  return pack('<BI4', hold and HELD or CLAIMED, attempt) .. token .. pack('<I8I8', seen, now + span),
    hold and 0 or math.ceil(span / 1000) + HOUR
end

-- From Redis 7.0 on, one command looks a record up and writes the first one. It is for
-- calls whose requests share their terms: flags, lease, and in ARGV[4] the earliest
-- time after which a message is late.
local head, px, answer
if redis.REDIS_VERSION_NUM and stride == 1 and ARGV[4] ~= '' then
  local flags, span, late = unpack('<BI8I8', ARGV[4])
  if not has(flags, DONE_FLAG) and now <= late then
    head, px = head_of(flags, 1, now, span)
    px, answer = px > 0 and digits(px), framed('F' .. head)
  end
end

-- claim claims a key that has no record. It returns the record of any other key.
local function claim(first, at, stop)
  local rec, reply = head .. sub(requests, at + 17, stop), nil
  if px then
    reply = pcall('SET', KEYS[first], rec, 'NX', 'GET', 'PX', px)
  else
    reply = pcall('SET', KEYS[first], rec, 'NX', 'GET')
  end
  if not reply then
    granted = true
    return nil, nil, answer
  elseif type(reply) == 'string' then
    return stated(reply)
  end
  return load(first) -- the server refuses to write
end

-- grant gives the key to the owner of the request, or marks it as done.
local function grant(first, rec, flags, span, at, stop, member)
  local attempt, seen = 1, now
  if rec then
    attempt, seen = unpack('<I4', rec, 2) + 1, unpack('<I8', rec, 14)
  end
  if has(flags, DONE_FLAG) then
    local done, err = sub(requests, at + 25, stop), nil
    if has(flags, COMPACT_FLAG) then
      err = mark(first, member, done, span)
    else
      err = store(KEYS[first], done, span)
    end
    return err and refused(err) or 'F' .. pack('<I4', attempt)
  end
  local print, rest = sub(requests, at + 17, at + 24), sub(requests, at + 25, stop)
  if rec and print == NONE then
    -- A take-over without fingerprint keeps the fingerprint of the record, so
    -- that another payload still does not match.
    print = print_of(rec)
  end
  local head, px = head_of(flags, attempt, seen, span)
  local err = store(KEYS[first], head .. print .. rest, px)
  if err then
    return refused(err)
  end
  granted = true
  return 'F' .. head
end

-- again answers a repeated claim. The lease starts again.
local function again(first, rec, lease)
  local ends = math.max(lease_end(rec), now + lease)
  local head = sub(rec, 1, 21) .. pack('<I8', ends)
  local keep = byte(rec) == HELD and 0 or math.ceil((ends - now) / 1000) + HOUR
  local err = store(KEYS[first], head .. sub(rec, 30), keep)
  return err and refused(err) or 'F' .. head
end

local answers = each(function(first, rec, state, at, stop, member)
  local flags, span, late = unpack('<BI8I8', requests, at)
  if rec then
    local done, tail = has(flags, DONE_FLAG), sub(requests, at + 25, stop)
    if not matches(print_of(rec), sub(requests, at + 17, at + 24)) then
      return 'M' .. sub(rec, 1, HEADER)
    elseif state == ONE_STEP and done and rec == tail then
      local err = has(flags, COMPACT_FLAG) and repair(first, member, rec, span)
      return err and refused(err) or 'F' .. pack('<I4', 0)
    elseif state == DONE or state == ONE_STEP then
      return 'D' .. rec
    elseif state == UNKNOWN then
      return 'U' .. rec
    elseif not done and sub(rec, 38) == tail then
      return again(first, rec, span)
    elseif lease_end(rec) > now then
      return 'I' .. rec
    end
  else
    local answer = marked(first, member)
    if answer then
      return answer
    elseif late > 0 and now > late then
      return 'L'
    end
  end
  return grant(first, rec, flags, span, at, stop, member)
end, head and claim)
if granted then
  redis.call('SET', KEYS[1], digits(number))
end
return answers
