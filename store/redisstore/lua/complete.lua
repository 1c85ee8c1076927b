-- Marks claimed keys as done. A request has: token, window in milliseconds,
-- whether the compact form is possible, kind of the result, and the result.

-- The requests of a call nearly always have the same terms: window and compact form.
local terms, window, compact, px
local KEPT = framed('K')

local function agree(at)
  local wanted = sub(requests, at + 8, at + 16)
  if terms ~= wanted then
    terms, window, compact = wanted, unpack('<I8B', wanted)
    px = digits(window)
  end
end

-- complete completes a claimed key without calls that other keys need. It returns the
-- record of any other key. It is not for the compact form.
local function complete(first, at, stop)
  local rec = pcall('GET', KEYS[first])
  if type(rec) ~= 'string' then
    return load(first)
  end
  agree(at)
  if byte(rec) ~= CLAIMED or #rec < LEAST[CLAIMED] or token_of(rec) ~= sub(requests, at, at + 7) or window == 0 then
    return stated(rec)
  end
  local done = finished(rec, sub(rec, 2, 21), sub(requests, at + 17, stop))
  local err = pcall('SET', KEYS[first], done, 'PX', px).err
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
  agree(at)
  local token = sub(requests, at, at + 7)
  if state == ONE_STEP or token == NONE or token_of(rec) ~= token then
    return stale(rec)
  elseif state == DONE then
    -- This completion is a repetition.
    local err = compact == 1 and print_of(rec) == NONE and repair(first, member, rec, window)
    return err and refused(err) or 'K'
  end
  local done, err = finished(rec, sub(rec, 2, 21), sub(requests, at + 17, stop)), nil
  if compact == 1 and print_of(rec) == NONE then
    err = mark(first, member, done, window)
  else
    err = store(KEYS[first], done, window)
  end
  return err and refused(err) or 'K'
end, stride == 1 and complete)
