-- Claims keys. A request has: flags; lease or, for a claim with Done, window in
-- milliseconds; the time after which the message is late; fingerprint; ids,
-- owner or, for a claim with Done, the record to write.

local DONE_FLAG, HOLD_FLAG, COMPACT_FLAG = 1, 2, 4
local counter = tonumber(redis.call('GET', KEYS[1])) or 0
local last = counter

local function has(flags, flag)
  return math.floor(flags / flag) % 2 == 1
end

-- grant gives the key to the owner of the request, or marks it as done.
local function grant(first, rec, flags, span, req, member)
  local attempt, seen = 1, now
  local tail = sub(req, 18)
  if rec then
    attempt, seen = unpack('<I4', rec, 2) + 1, unpack('<I8', rec, 14)
    if sub(tail, 1, 8) == NONE then
      -- A take-over without fingerprint keeps the fingerprint of the record, so
      -- that another payload still does not match.
      tail = print_of(rec) .. sub(tail, 9)
    end
  end
  if has(flags, DONE_FLAG) then
    local err
    if has(flags, COMPACT_FLAG) then
      err = mark(first, member, sub(req, 26), span)
    else
      err = store(KEYS[first], sub(req, 26), span)
    end
    return err and refused(err) or 'F' .. pack('<I4', attempt)
  end
  local token = math.max(last + 1, now)
  local hold = has(flags, HOLD_FLAG)
  local head = pack('<BI4I8I8I8', hold and HELD or CLAIMED, attempt, token, seen, now + span)
  -- The attempt count is kept for an hour after the lease ends, and forever
  -- with hold.
  local err = store(KEYS[first], head .. tail, hold and 0 or math.ceil(span / 1000) + HOUR)
  if err then
    return refused(err)
  end
  last = token
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

local answers = each(function(first, rec, state, req, member)
  local flags, span, late = unpack('<BI8I8', req)
  if rec then
    local done = has(flags, DONE_FLAG)
    if not matches(print_of(rec), sub(req, 18, 25)) then
      return 'M' .. sub(rec, 1, HEADER)
    elseif state == ONE_STEP and done and rec == sub(req, 26) then
      local err = has(flags, COMPACT_FLAG) and repair(first, member, rec, span)
      return err and refused(err) or 'F' .. pack('<I4', 0)
    elseif state == DONE or state == ONE_STEP then
      return 'D' .. rec
    elseif state == UNKNOWN then
      return 'U' .. rec
    elseif not done and sub(rec, 38) == sub(req, 26) then
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
  return grant(first, rec, flags, span, req, member)
end)
if last > counter then
  redis.call('SET', KEYS[1], digits(last))
end
return answers
