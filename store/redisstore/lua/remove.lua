-- Removes keys in any state, also damaged ones, and reports whether they were
-- there.

local function remove(first, _, _, _, _, member)
  local was = redis.call('DEL', KEYS[first])
  for i = first + 1, first + stride - 1 do
    was = was + (own('SREM', KEYS[i], member) or 0)
  end
  return was > 0 and 'K' or 'A'
end

return each(remove, function() end)
