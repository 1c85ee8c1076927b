-- Extends leases. A request has: token and lease.

return each(function(first, rec, state, at)
  local token, lease = sub(requests, at, at + 7), unpack('<I8', requests, at + 8)
  if not rec or not held(state) or state == UNKNOWN or token_of(rec) ~= token then
    return stale(rec)
  end
  local ends = pack('<I8', now + lease)
  local keep = state == HELD and 0 or math.ceil(lease / 1000) + HOUR
  local err = store(KEYS[first], sub(rec, 1, 21) .. ends .. sub(rec, 30), keep)
  return err and refused(err) or 'K' .. ends
end)
