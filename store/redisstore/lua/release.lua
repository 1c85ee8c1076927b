-- Releases claims. A request has: token, and whether the key becomes unknown.

return each(function(first, rec, state, at)
  local token, unknown = sub(requests, at, at + 7), byte(requests, at + 8)
  if not rec or not held(state) or token_of(rec) ~= token then
    return stale(rec)
  end
  if unknown == 0 then
    redis.call('DEL', KEYS[first])
    return 'K'
  end
  local err = store(KEYS[first], string.char(UNKNOWN) .. sub(rec, 2), 0)
  return err and refused(err) or 'K'
end)
