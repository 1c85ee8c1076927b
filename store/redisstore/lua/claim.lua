-- Claims keys. A request is: flags, lease, window in milliseconds, the moment
-- after which the message is late, fingerprint, and as its tail owner and ids
-- or, for a claim with Done, the record to write.

local DONE_FLAG, HOLD_FLAG, COMPACT_FLAG, LEGACY_FLAG = 1, 2, 4, 8
local counter = tonumber(redis.call('GET', KEYS[1])) or 0
local last = counter

local function has(flags, flag)
  return math.floor(flags / flag) % 2 == 1
end

-- grant gives the key to the owner of the request, or makes it done.
local function grant(first, rec, flags, lease, window, print, tail, member)
  local attempt, seen = 1, pack('<I8', now)
  if rec then
    attempt, seen = unpack('<I4', rec, 2) + 1, sub(rec, 14, 21)
    if print == NONE then
      -- A take-over without fingerprint does not make the key fit for another
      -- payload.
      print = print_of(rec)
    end
  end
  if has(flags, DONE_FLAG) then
    local err
    if has(flags, COMPACT_FLAG) then
      err = mark(first, member, tail)
    else
      err = store(KEYS[first], tail, window)
    end
    return err and refused(err) or 'F' .. pack('<I4', attempt)
  end
  local token = math.max(last + 1, now)
  local state = has(flags, HOLD_FLAG) and HELD or CLAIMED
  local head = pack('<BI4I8', state, attempt, token) .. seen .. print .. pack('<I8', now + lease)
  -- How often a key was tried is remembered for an hour after the lease; with
  -- hold, for ever.
  local keep = state == HELD and 0 or math.ceil(lease / 1000) + HOUR
  local err = store(KEYS[first], head .. tail, keep)
  if err then
    return refused(err)
  end
  last = token
  return 'F' .. head
end

-- again answers a claim that was sent twice: its lease begins anew.
local function again(first, rec, lease)
  local ends = math.max(lease_end(rec), now + lease)
  local head = sub(rec, 1, 29) .. pack('<I8', ends)
  local keep = byte(rec) == HELD and 0 or math.ceil((ends - now) / 1000) + HOUR
  local err = store(KEYS[first], head .. sub(rec, 38), keep)
  return err and refused(err) or 'F' .. head
end

local answers = each(function(first, req, member)
  local flags, lease, window, late = unpack('<BI8I8I8', req)
  local print, tail = sub(req, 26, 33), sub(req, 34)
  local rec, state = load(KEYS[first])
  if rec then
    if not matches(print_of(rec), print) then
      return 'M' .. sub(rec, 1, HEADER)
    elseif state == ONE_STEP and rec == tail and has(flags, DONE_FLAG) then
      return 'F' .. pack('<I4', 1)
    elseif state == DONE or state == ONE_STEP then
      return 'D' .. rec
    elseif state == UNKNOWN then
      return 'U' .. rec
    elseif not has(flags, DONE_FLAG) and sub(rec, 38) == tail then
      return again(first, rec, lease)
    elseif lease_end(rec) > now then
      return 'I' .. rec
    end
  elseif has(flags, LEGACY_FLAG) or marked(first, member) then
    return 'D'
  elseif late > 0 and now > late then
    return 'L'
  end
  return grant(first, rec, flags, lease, window, print, tail, member)
end)
if last > counter then
  redis.call('SET', KEYS[1], string.format('%.0f', last))
end
return answers
