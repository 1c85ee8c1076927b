-- Ends the state unknown. A request is: the state that follows, window in
-- milliseconds, kind of the result, and the result.

return each(function(first, rec, state, req)
  local as, window = unpack('<BI8', req)
  if state ~= UNKNOWN then
    return stale(rec)
  end
  if as ~= DONE then
    redis.call('DEL', KEYS[first])
    return 'K'
  end
  -- Without a token: the holder that comes after the decision is too late.
  local err = store(KEYS[first], finished(rec, NONE, sub(req, 10)), window)
  return err and refused(err) or 'K'
end)
