-- Ends the state unknown. A request is: the state that follows, kind of the
-- result, window in milliseconds, and the result.

return each(function(first, req)
  local as, kind, window, from = unpack('<BBI8', req)
  local rec, state = load(KEYS[first])
  if state ~= UNKNOWN then
    return stale(rec)
  end
  if as ~= DONE then
    redis.call('DEL', KEYS[first])
    return 'K'
  end
  -- Without a token: the holder that comes after the decision is too late.
  local ids = sub(rec, 50 + unpack('<I4', rec, 46))
  local done = string.char(DONE) .. sub(rec, 2, 5) .. NONE .. sub(rec, 14, 29) .. string.char(kind) .. ids .. sub(req, from)
  local err = store(KEYS[first], done, window)
  return err and refused(err) or 'K'
end)
