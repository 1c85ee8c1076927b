-- Marks claimed keys as done. A request has: window in milliseconds, whether the
-- compact form is possible, token, kind of the result, and the result. The first
-- two are in ARGV[4] if all requests of the call share them.

local KEPT, px = framed('K'), nil
if stride == 1 and ARGV[4] ~= '' then
  local window = unpack('<I8', ARGV[4])
  px = window > 0 and digits(window)
end

-- Records that one call claimed have one start, up to first seen.
local start, token, done

-- complete completes a claimed key without calls that other keys need. It returns the
-- record of any other key. It is not for the compact form.
local function complete(first, at, stop)
  local key = KEYS[first]
  local rec = pcall('GET', key)
  if type(rec) ~= 'string' then
    return load(first)
  end
  local begin = sub(rec, 1, 21)
  if begin ~= start then
    start, token, done = begin, token_of(begin), DONE_LETTER .. sub(begin, 2)
  end
  if byte(rec) ~= CLAIMED or #rec < LEAST[CLAIMED] or token ~= sub(requests, at + 9, at + 16) then
    return stated(rec)
  end
  local err = pcall('SET', key, finished(rec, done, sub(requests, at + 17, stop)), 'PX', px).err
  return nil, nil, err and framed(refused(err)) or KEPT
end

return each(function(first, rec, state, at, stop, member)
  if not rec then
    local answer = marked(first, member)
    if answer == 'C' then
      return answer
    end
    return stale(answer and DONE_LETTER or nil)
  end
  local window, compact = unpack('<I8B', requests, at)
  local token = sub(requests, at + 9, at + 16)
  if state == ONE_STEP or token == NONE or token_of(rec) ~= token then
    return stale(rec)
  elseif state == DONE then
    -- This completion is a repetition.
    local err = compact == 1 and print_of(rec) == NONE and repair(first, member, rec, window)
    return err and refused(err) or 'K'
  end
  local done, err = finished(rec, DONE_LETTER .. sub(rec, 2, 21), sub(requests, at + 17, stop)), nil
  if compact == 1 and print_of(rec) == NONE then
    err = mark(first, member, done, window)
  else
    err = store(KEYS[first], done, window)
  end
  return err and refused(err) or 'K'
end, px and complete)
