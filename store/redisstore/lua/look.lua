-- Looks keys up. An answer has the remaining lifetime in milliseconds, or a
-- negative number without an end, the current time, and the record. S is a key
-- in the compact form, which may still have its record.

return each(function(first, rec, state, _, _, member)
  local none = 'A'
  if not held(state) then
    for i = first + 1, first + stride - 1 do
      local found = own('SISMEMBER', KEYS[i], member)
      if found == 1 then
        return 'S' .. pack('<i8I8', redis.call('PTTL', KEYS[i]), now) .. (rec or string.char(DONE))
      elseif found == nil then
        none = 'C'
      end
    end
  end
  if rec then
    return 'R' .. pack('<i8I8', redis.call('PTTL', KEYS[first]), now) .. rec
  end
  return none
end)
