-- Forgets keys in whatever state they are, and says whether they were there.

return each(function(first, _, member)
  local was = redis.call('DEL', KEYS[first])
  for i = first + 1, first + stride - 1 do
    was = was + redis.call('SREM', KEYS[i], member)
  end
  return was > 0 and 'K' or 'A'
end)
