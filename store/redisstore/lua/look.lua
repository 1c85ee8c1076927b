-- Looks keys up: the milliseconds that the record lasts, or less than 0, this
-- moment, and the record.

return each(function(first, rec, _, _, member)
  if rec then
    return 'R' .. pack('<i8I8', redis.call('PTTL', KEYS[first]), now) .. rec
  end
  for i = first + 1, first + stride - 1 do
    if redis.call('SISMEMBER', KEYS[i], member) == 1 then
      return 'R' .. pack('<i8I8', redis.call('PTTL', KEYS[i]), now) .. string.char(DONE)
    end
  end
  return 'A'
end)
