-- Resolves unknown keys. A request has: the new state, window in milliseconds,
-- kind of the result, and the result.

return each(function(first, rec, state, at, stop)
  local as, window = unpack('<BI8', requests, at)
  if state ~= UNKNOWN then
    return stale(rec)
  end
  if as ~= DONE then
    redis.call('DEL', KEYS[first])
    return 'K'
  end
  -- The record gets no token, so a holder that completes after this decision is
  -- too late.
  local err = store(KEYS[first], finished(rec, DONE_LETTER .. sub(rec, 2, 5) .. NONE .. sub(rec, 14, 21), sub(requests, at + 9, stop)), window)
  return err and refused(err) or 'K'
end)
