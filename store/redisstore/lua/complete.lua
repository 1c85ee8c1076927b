-- Marks claimed keys as done. A request has: token, window in milliseconds,
-- whether the compact form is possible, kind of the result, and the result.

return each(function(first, rec, state, at, stop, member)
  local token, window, compact = unpack('<I8I8B', requests, at)
  if not rec then
    local answer = marked(first, member)
    if answer == 'C' then
      return answer
    end
    return stale(answer and string.char(DONE) or nil)
  elseif state == ONE_STEP or token == 0 or token_of(rec) ~= token then
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
end)
